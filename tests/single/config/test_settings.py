"""`Settings`: the TFDIST_* variables, and the errors of unusable values."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest

from tfdist.config.host_environment import passed_environment
from tfdist.config.settings import Settings, environment_without_job
from tfdist.errors import ClusterConfigError

pytestmark = pytest.mark.timeout(30)


def test_settings_defaults_and_values(tmp_path, monkeypatch, caplog):
    assert Settings.from_environment({}) == Settings(None, 300.0, 0, 300.0, True)
    given = {
        "TFDIST_SECRET": " s3cret of 16 byte\n",
        "TFDIST_RENDEZVOUS_TIMEOUT": "2.5",
        "TFDIST_DATA_PORT": "4711",
        "TFDIST_EXIT_TIMEOUT": "7",
        "TFDIST_PEER_MEMORY": "0",
        "TFDIST_CHECKPOINT_DIR": "/snapshots",
        "TFDIST_PREEMPTION_MARKER": "/saved",
        "TFDIST_PS_MEMORY": "8G",
        "TFDIST_DATA_SERVICE_DIR": "/journal",
        "TFDIST_DEBUG_DIR": "/dumps",
        "TFDIST_TIMELINE": "/shared/job.json",
        "TFDIST_METRICS_PORT": "0",
        "TFDIST_METRICS_SAME_PORT": "1",
        "TFDIST_METRICS_BY_DEFAULT": "1",
        "TFDIST_STATE_DIR": "/states",
        "TFDIST_STRAGGLER_PERIOD": "60",
        "TFDIST_RESTARTS": "2",
        "TFDIST_ELASTIC_START_TIMEOUT": "1.5",
        "TFDIST_ELASTIC_RECORDS": "500M",
        "TFDIST_TOMBSTONE_DIR": "/shared/ended",
        "TFDIST_JOB_ID": "night-17",
    }
    expected = Settings(
        secret=b"s3cret of 16 byte",
        rendezvous_timeout=2.5,
        data_port=4711,
        exit_timeout=7.0,
        peer_memory=False,
        checkpoint_dir="/snapshots",
        preemption_marker="/saved",
        ps_memory=8 << 30,
        data_service_dir="/journal",
        debug_dir="/dumps",
        timeline="/shared/job.json",
        metrics_port=0,
        metrics_same_port=True,
        metrics_by_default=True,
        state_dir="/states",
        straggler_period=60,
        restarts=2,
        elastic_start_timeout=1.5,
        elastic_records=500 << 20,
        tombstone_dir="/shared/ended",
        job_id="night-17",
    )
    assert Settings.from_environment(given) == expected
    file = tmp_path / "secret"
    file.write_bytes(b"32 bytes from openssl rand -hex\n")
    file.chmod(0o600)
    found = Settings.from_environment({"TFDIST_SECRET_FILE": str(file)})
    assert found.secret == b"32 bytes from openssl rand -hex" and not caplog.messages
    file.chmod(0o640)
    Settings.from_environment({"TFDIST_SECRET_FILE": str(file)})
    assert caplog.messages == [
        f"TFDIST_SECRET_FILE: other users can read or write {file} (mode 640); expected mode 600"
    ]
    monkeypatch.setenv("TFDIST_DATA_PORT", "12")
    assert Settings.from_environment().data_port == 12


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("1", 1), (" 500M ", 500 << 20), ("0.5K", 512), ("2T", 2 << 40), ("1.5G", 3 << 29)],
)
def test_size(text, size):
    assert Settings.from_environment({"TFDIST_PS_MEMORY": text}).ps_memory == size


@pytest.mark.parametrize("text", ["0", "-1", "8g", "8GB", "8 G", "G", "1e9", "0.0001", "9" * 20])
def test_what_is_no_size(text):
    with pytest.raises(ClusterConfigError, match="TFDIST_PS_MEMORY: expected .* 8G .* received"):
        Settings.from_environment({"TFDIST_PS_MEMORY": text})


@pytest.mark.parametrize(
    ("name", "text"),
    [("METRICS_PORT", "65536"), ("METRICS_PORT", "-1"), ("RESTARTS", "-1"), ("RESTARTS", "often")],
)
def test_numbers_of_the_metrics(name, text):
    with pytest.raises(ClusterConfigError, match=f"TFDIST_{name}: expected .* received '{text}'"):
        Settings.from_environment({f"TFDIST_{name}": text})


def test_settings_do_not_show_the_secret():
    assert "s3cret" not in repr(Settings(secret=b"s3cret"))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TFDIST_RENDEZVOUS_TIMEOUT": "soon"}, "TFDIST_RENDEZVOUS_TIMEOUT: .* received 'soon'"),
        ({"TFDIST_RENDEZVOUS_TIMEOUT": "-1"}, "expected a positive number of seconds"),
        ({"TFDIST_EXIT_TIMEOUT": "0"}, "TFDIST_EXIT_TIMEOUT: .* received '0'"),
        ({"TFDIST_ELASTIC_START_TIMEOUT": "0"}, "TFDIST_ELASTIC_START_TIMEOUT: .* received '0'"),
        ({"TFDIST_ELASTIC_START_TIMEOUT": "1m"}, "TFDIST_ELASTIC_START_TIMEOUT: .* received '1m'"),
        (
            {"TFDIST_ELASTIC_START_TIMEOUT": "300"},
            "TFDIST_ELASTIC_START_TIMEOUT: expected less than TFDIST_REND.* 300 s, .* received 300",
        ),
        (
            {"TFDIST_TOMBSTONE_DIR": "/x"},
            "TFDIST_TOMBSTONE_DIR: .* TFDIST_JOB_ID, beside it, received none",
        ),
        ({"TFDIST_JOB_ID": "../x"}, "TFDIST_JOB_ID: expected .* received '../x'"),
        ({"TFDIST_JOB_ID": "x" * 101}, "TFDIST_JOB_ID: expected .* received 'xxx"),
        ({"TFDIST_JOB_ID": ".x"}, "TFDIST_JOB_ID: expected .* received '.x'"),
        ({"TFDIST_EXIT_TIMEOUT": "inf"}, "TFDIST_EXIT_TIMEOUT: .* received 'inf'"),
        ({"TFDIST_EXIT_TIMEOUT": "nan"}, "TFDIST_EXIT_TIMEOUT: .* received 'nan'"),
        ({"TFDIST_DATA_PORT": "65536"}, "TFDIST_DATA_PORT: .* 0..65535, received '65536'"),
        ({"TFDIST_DATA_PORT": "x"}, "TFDIST_DATA_PORT: expected a port number"),
        ({"TFDIST_PEER_MEMORY": "no"}, "TFDIST_PEER_MEMORY: expected 0 or 1, received 'no'"),
        ({"TFDIST_SECRET": ""}, "TFDIST_SECRET: expected a secret, received nothing"),
        ({"TFDIST_SECRET": "15 bytes are no"}, "a secret of at least 16 bytes, received 15"),
        ({"TFDIST_SECRET": "a", "TFDIST_SECRET_FILE": "b"}, "expected one of .* received both"),
        ({"TFDIST_SECRET_FILE": "/no/such"}, "TFDIST_SECRET_FILE: .*'/no/such': No such file"),
        ({"TFDIST_SECRET_FILE": "/dev/null"}, "TFDIST_SECRET_FILE: .* received nothing"),
    ],
)
def test_bad_settings(environ, message):
    with pytest.raises(ClusterConfigError, match=message):
        Settings.from_environment(environ)


def test_the_name_of_a_job():
    def name(**environ):
        return Settings.from_environment(environ).job_id

    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    assert name() is None and name(SLURM_JOB_ID="4711") is None
    assert name(**slurm) == "slurm-4711.0"
    assert name(**slurm, TFDIST_JOB_ID=" mine ") == "mine"
    assert name(SLURM_JOB_ID="/", SLURM_STEP_ID="0") is None


def test_a_secret_is_bytes_and_need_not_be_text(tmp_path):
    secret = b"\xff sixteen \xc3 bytes\x80"
    file = tmp_path / "secret"
    file.write_bytes(secret + b"\n")
    file.chmod(0o600)
    code = "from tfdist.config.settings import Settings; print(Settings.from_environment().secret)"
    for name, value in (("TFDIST_SECRET", secret), ("TFDIST_SECRET_FILE", os.fsencode(file))):
        environ = {**os.environb, name.encode(): value}
        told = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True)
        assert (told.stdout.decode().strip(), told.stderr) == (repr(secret), b"")
    assert passed_environment({}, secret)["TFDIST_SECRET"] == os.fsdecode(secret)


def test_a_secret_that_no_variable_can_hold_is_not_shown():
    environ = {"TFDIST_SECRET": "hush hush hush \ud800 hush"}
    with pytest.raises(ClusterConfigError, match="TFDIST_SECRET: expected a secret") as caught:
        Settings.from_environment(environ)
    text = "".join(traceback.format_exception(caught.value))
    assert "hush" not in text and "UnicodeEncodeError" not in text


def test_an_environment_without_a_job(monkeypatch):
    of_a_job = (
        *("TF_CONFIG", "TFDIST_ELASTIC", "TFDIST_CHECKPOINT_DIR", "TFDIST_DATA_SERVICE_DIR"),
        "TFDIST_TOMBSTONE_DIR",
    )
    for name in (*of_a_job, "TFDIST_PEER_MEMORY"):
        monkeypatch.setenv(name, "1")
    kept = environment_without_job()
    assert kept["TFDIST_PEER_MEMORY"] == "1" and not kept.keys() & set(of_a_job)
