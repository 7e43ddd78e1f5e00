"""Launched jobs with encrypted connections: the variables of the tasks, and of later commands."""

from __future__ import annotations

import json
import re
import ssl

import pytest
import yaml

from single.launch.fake_ssh import make_fake_ssh
from support.authority import Authority
from support.launching import Launcher
from tfdist.cli.main import main
from tfdist.config.job_file import JobFile
from tfdist.config.tls import FIXED_NAME

SECRET = "a8f5f167f44f4964e6c998dee827110c"
ENCRYPTED = "tfdist run: connections between tasks are encrypted: TLS, with "
TELL = """
names = ("TFDIST_TLS", "TFDIST_TLS_CERT", "TFDIST_TLS_KEY", "TFDIST_TLS_CA")
say(json.dumps({name: os.environ[name] for name in names if name in os.environ}))
wait_for_file("continue")
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    for name in ("TFDIST_SECRET", "TFDIST_SECRET_FILE", "TFDIST_TLS"):
        monkeypatch.delenv(name, raising=False)
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def told(lines):
    return [json.loads(line.partition("] ")[2]) for line in lines]


def scraping(path, capsys):
    """Prometheus's options of TLS in the configuration for a job."""
    assert main(["metrics", "config", "--job", str(path)]) == 0
    (scraped,) = yaml.safe_load(capsys.readouterr().out)["scrape_configs"]
    assert scraped["scheme"] == "https"
    return scraped["tls_config"]


def test_the_option_makes_certificates_of_the_secret(launch, tmp_path, capsys):
    path = tmp_path / "job.json"
    running = launch(TELL, "--workers", "2", "--tls", "--job-file", str(path))
    assert told(running.read_lines(1)) == [{"TFDIST_TLS": "secret"}]
    file = JobFile.read(path)
    assert file.tls == {"TFDIST_TLS": "secret"} and file.encryption.secret == file.secret_bytes
    assert main(["metrics", "authority", "--job", str(path)]) == 0
    ssl.create_default_context(cadata=capsys.readouterr().out)
    options = scraping(path, capsys)
    # Each certificate of the authority has a number of its own.
    ssl.create_default_context(cadata=options.pop("ca"))
    assert options == {"server_name": FIXED_NAME}
    (tmp_path / "continue").touch()
    code, _, err = running.finish()
    assert code == 0 and err[0] == f"{ENCRYPTED}certificates made from the secret"


def test_files(launch, tmp_path, monkeypatch, capsys):
    tls = Authority(tmp_path).issue()
    for name, value in tls.variables.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "job.json"
    running = launch(TELL, "--tls", "--job-file", str(path))
    assert told(running.read_lines(1)) == [tls.variables]
    assert JobFile.read(path).encryption == tls
    assert main(["metrics", "authority", "--job", str(path)]) == 2
    assert f"received {tls.authority}" in capsys.readouterr().err
    assert scraping(path, capsys) == {"ca_file": tls.authority}
    (tmp_path / "continue").touch()
    code, _, err = running.finish()
    assert code == 0 and err[0] == f"{ENCRYPTED}the certificate {tls.certificate}"


def test_a_job_without(launch, tmp_path):
    path = tmp_path / "job.json"
    running = launch(TELL, "--job-file", str(path))
    assert told(running.read_lines(1)) == [{}]
    assert JobFile.read(path).encryption is None
    (tmp_path / "continue").touch()
    code, _, err = running.finish()
    assert code == 0 and not any("encrypted" in line for line in err)


@pytest.mark.parametrize(
    ("environ", "options", "message"),
    [
        ({}, ("--data-workers", "1"), "--data-workers 1: expected none with encrypted"),
        ({"TFDIST_SECRET": "sixteen bytes..."}, (), "TFDIST_TLS=secret: expected .* 128 random"),
        ({"TFDIST_TLS_CERT": "x"}, (), "received no TFDIST_TLS_KEY, TFDIST_TLS_CA"),
        (
            {f"TFDIST_TLS_{name}": "/no/such" for name in ("CERT", "KEY", "CA")},
            (),
            "TFDIST_TLS_CERT: expected a readable file, received '/no/such'",
        ),
    ],
)
def test_a_job_that_cannot_begin(launch, monkeypatch, environ, options, message):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, out, err = launch(TELL, "--tls", *options).finish()
    assert (code, out) == (1, []) and re.search(message, err[-1]), err


def test_hosts(tmp_path, launch):
    program = make_fake_ssh(tmp_path)
    hosts = ("--ssh", str(program), "--hosts", "127.0.0.2:1,127.0.0.3:1")
    running = launch(TELL, "--tls", *hosts)
    assert told(running.read_lines(1)) == [{"TFDIST_TLS": "secret"}]
    (tmp_path / "continue").touch()
    assert running.finish()[0] == 0
