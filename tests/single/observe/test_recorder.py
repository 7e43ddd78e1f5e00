"""The flight recorder of one task: its files, their places, and its answers to requests."""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from support.launching import PACKAGE
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe import channel, dumps, recorder
from tfdist.observe.explain import explain
from tfdist.observe.recorder import Recorder

pytestmark = pytest.mark.timeout(60)
CLUSTER = Cluster(workers=("here:1", "there:2"), ps=("far:3",), task_type="worker", task_index=1)
CRASHES = """
import os, sys
from pathlib import Path
from tfdist.config.cluster import Cluster
from tfdist.observe.recorder import Recorder
recorder = Recorder(Cluster.from_environment(), Path(sys.argv[1]))
def last_function(): os.abort()
last_function()
"""


@pytest.fixture
def recording(tmp_path):
    made = Recorder(CLUSTER, tmp_path / "dumps")
    yield made
    made.close()


def test_a_dump_says_who_and_where(recording, tmp_path):
    path = recording.write("a test asks")
    assert path == tmp_path / "dumps" / "worker-1.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    (dump,) = dumps.read_all(path.parent)
    assert (dump.task, dump.rank, dump.pid) == ("worker 1", 1, os.getpid())
    assert (dump.training, dump.servers) == (["worker 0", "worker 1"], ["ps 0"])
    assert dump.host == socket.gethostname() and dump.reasons == ["a test asks"]
    assert set(dump.versions) >= {"tfdist", "tensorflow", "keras", "python"}
    main = dump.threads[0]
    assert main["main"] and main["name"] == "MainThread"
    where = [frame["function"] for frame in main["stack"]]
    assert "test_a_dump_says_who_and_where" in where
    (line,) = [f["code"] for f in main["stack"] if f["function"] == where[where.index("write")]][:1]
    assert "self._dump()" in line


def test_a_later_dump_takes_the_place_of_the_earlier(recording, tmp_path):
    recording.write("first")
    recording.write("second")
    (dump,) = dumps.read_all(tmp_path / "dumps")
    assert dump.reasons == ["first", "second"]
    assert not [path for path in (tmp_path / "dumps").iterdir() if path.name.startswith(".")]


def test_no_link_is_followed(recording, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "dumps" / "worker-1.json"
    link.symlink_to(victim)
    recording.write("a test asks")
    assert victim.read_text() == "precious" and not link.is_symlink()
    link.unlink()
    link.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        dumps.read_all(link.parent)


def test_its_thread_answers(recording, tmp_path):
    directory = tmp_path / "dumps"
    answers = channel.ask_all(directory, "who is there?", timeout=20)
    assert answers == {"worker-1": f"written {directory / 'worker-1.json'}"}
    (dump,) = dumps.read_all(directory)
    assert dump.reasons == ["who is there?"]


def test_a_silent_client_stops_nobody(recording, tmp_path):
    directory = tmp_path / "dumps"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(directory / "worker-1.sock"))
        assert channel.ask_all(directory, "after it", timeout=20)["worker-1"].startswith("written")


def test_tasks_that_are_gone_or_stopped(recording, tmp_path):
    directory = tmp_path / "dumps"
    channel.listen(directory, "worker-0").close()  # as a killed process leaves it
    stopped = channel.listen(directory, "ps-0")
    try:
        answers = channel.ask_all(directory, "a test asks", timeout=1.0)
    finally:
        stopped.close()
    assert answers["worker-0"].startswith("failed: its process has ended (Connection refused")
    assert answers["worker-1"].startswith("written")
    assert answers["ps-0"].startswith("failed: no answer within 1 s; it is stopped")


def test_another_task_that_asks_gets_a_young_dump(recording, tmp_path):
    directory = tmp_path / "dumps"
    recording.write("own reason")
    channel.tell_others(directory, "worker-0", "asked by worker 0: the ranks disagree")
    channel.ask_all(directory, "a person asks", timeout=20)
    (dump,) = dumps.read_all(directory)
    assert dump.reasons == ["own reason", "a person asks"]


def test_exception_and_where_it_was_raised(recording, tmp_path):
    def fails():
        raise ValueError("a bad row")

    try:
        fails()
    except ValueError as error:
        recording.note_exception(error)
    (dump,) = dumps.read_all(tmp_path / "dumps")
    assert dump.exception == "ValueError: a bad row"
    assert dump.threads[0]["stack"][-1]["function"] == "fails"
    finding = next(one for one in explain([dump]) if one.tasks == ("worker 1",))
    assert "worker 1 has ended with an exception: ValueError: a bad row, at " in finding.text
    assert 'in fails: raise ValueError("a bad row")' in finding.text


def test_close_removes_what_is_not_needed(tmp_path):
    made = Recorder(CLUSTER, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"worker-1.sock"}
    made.close()
    made.close()
    assert list(tmp_path.iterdir()) == []
    assert not [t for t in threading.enumerate() if t.name == "tfdist-recorder" and t.is_alive()]


def test_fatal_signal(tmp_path):
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "TF_CONFIG": CLUSTER.tf_config()}
    crashed = subprocess.run(
        [sys.executable, "-c", CRASHES, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=50,
    )
    assert crashed.returncode < 0, crashed.stdout.decode()
    crashes = dumps.read_crashes(tmp_path)
    assert set(crashes) == {"worker-1"} and "last_function" in crashes["worker-1"]
    assert dumps.crash_path_of(tmp_path, "worker 1").stat().st_mode & 0o777 == 0o600
    assert faulthandler.is_enabled()  # pytest's own, which a recorder leaves alone


def test_without_a_directory_nothing_is_written():
    assert recorder.start(CLUSTER, Settings()) is None


def test_a_directory_that_cannot_be_used_is_logged(tmp_path, caplog):
    file = tmp_path / "file"
    file.touch()
    assert recorder.start(CLUSTER, Settings(debug_dir=str(file))) is None
    assert "worker 1: TFDIST_DEBUG_DIR: cannot use" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', "[" * 100_000])
def test_what_is_no_dump(tmp_path, content):
    (tmp_path / "worker-1.json").write_text(content)
    with pytest.raises(ValueError, match=r"worker-1\.json: expected a file of the flight recorder"):
        dumps.read_all(tmp_path)


def test_a_dump_is_json_with_what_is_pending(recording):
    fields = json.loads(recording.write("a test asks").read_text())
    assert fields["format"] == dumps.FORMAT and fields["pending"] == []
