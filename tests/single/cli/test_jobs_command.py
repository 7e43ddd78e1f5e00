"""`tfdist jobs`, `tfdist logs` and `tfdist stop`, and commands without --job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.launching import PACKAGE, Launcher
from support.patience import wait_until
from tfdist.cli.main import main
from tfdist.launch import job_registry, kept_output
from tfdist.launch.job_registry import JobEntry, job_of, jobs, registered

pytestmark = pytest.mark.timeout(90)

SCRIPT = """
say(f"{me} is here")
wait_for_file("continue")
say(f"{me} continues")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The directory of this user's jobs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"tfdist-{os.getuid()}"


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def ran(capsys, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    return code, *capsys.readouterr()


def test_from_the_start_to_the_end(launch, tmp_path, capsys):
    assert ran(capsys, "jobs")[1:] == ("", "no jobs\n")
    launched = launch(SCRIPT, "--workers", "2", arguments=["3"])
    launched.read_lines(2)
    (job,) = jobs()
    assert job.is_running and list(job.tasks) == ["worker 0", "worker 1"]
    _, out, _ = ran(capsys, "jobs")
    head, line = out.splitlines()
    assert head.split()[:2] == ["state", "began"]
    assert line.startswith("running") and line.endswith(f"{tmp_path}/script.py 3")
    assert job.job_file in line
    assert ran(capsys, "logs", "worker 1")[1] == "[worker 1] worker 1 is here\n"

    follower = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "logs", "--follow"],
        env=os.environ | {"PYTHONPATH": PACKAGE},
        stdout=subprocess.PIPE,
        text=True,
    )
    here = sorted(follower.stdout.readline() for _ in range(2))
    assert here == [f"[worker {i}] worker {i} is here\n" for i in range(2)]
    (tmp_path / "continue").touch()
    assert launched.finish()[0] == 3
    rest, _ = follower.communicate(timeout=60)
    # The first worker that ends stops the other one.
    assert re.search(r"\[worker (\d)\] worker \1 continues\n", rest) and follower.returncode == 0

    _, out, _ = ran(capsys, "jobs", "--json")
    (found,) = json.loads(out)
    assert (found["is_running"], found["code"]) == (False, 3) and found["ended"] > found["began"]
    # The other one was stopped, or has ended by itself meanwhile.
    assert found["exits"].keys() == {"worker 0", "worker 1"} and 3 in found["exits"].values()
    _, out, _ = ran(capsys, "logs", "--job", job.job_file)
    assert rest in out and "tfdist run: worker" in out
    code, _, errors = ran(capsys, "stop", "--job", job.job_file)
    assert code == 2 and f"{job.job_file}: the job has ended" in errors


def test_stop_tells_the_launcher_and_waits(launch, capsys):
    launch(SCRIPT, arguments=["0"]).read_lines(1)
    assert ran(capsys, "stop") == (0, "the job has ended: exit code 143\n", "")


def test_stop_does_not_wait_for_ever(launch, capsys):
    script = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay("here")\nwait_for_ever()'
    launch(script).read_lines(1)
    code, _, errors = ran(capsys, "stop", "--timeout", "0.3")
    assert code == 1 and "the job has not ended within 0.3 s; it was told to" in errors


def test_a_killed_launcher(launch, capsys):
    launched = launch(SCRIPT, arguments=["0"])
    launched.read_lines(1)
    launched.process.kill()
    launched.process.wait()
    wait_until(lambda: not jobs()[0].is_running, "the end of the launcher")
    assert ran(capsys, "jobs")[1].splitlines()[1].startswith("killed")


@pytest.mark.parametrize(
    "words", [["top"], ["dashboard"], ["scale", "2"], ["debug", "dump"], ["timeline", "stop"]]
)
def test_commands_without_a_job(words, capsys):
    code, _, errors = ran(capsys, *words)
    assert code == 2
    assert errors.startswith(
        f"tfdist {words[0]}: error: --job: expected a file of 'tfdist run', or"
    )


def entry(name: str, **fields) -> JobEntry:
    known = {"pid": os.getpid(), "command": ["train.py"], "directory": "/", "tasks": ["worker 0"]}
    known |= {"job_file": f"/{name}.json", "began": 1.0}
    return JobEntry(name=name, **(known | fields))


def test_several_jobs_must_be_named(capsys):
    with registered(entry("1-a")), registered(entry("2-b")):
        _, _, errors = ran(capsys, "logs")
        assert "expected the file of one of your 2 running jobs: /" in errors
        assert job_of(Path("/2-b.json")).name == "2-b"
        code, _, errors = ran(capsys, "logs", "chief", "--job", "/1-a.json")
        assert code == 2 and "TASK: expected one of worker 0, received 'chief'" in errors
        code, _, errors = ran(capsys, "logs", "--job", "/1-a.json")
        assert code == 1 and "was not kept" in errors
    code, _, errors = ran(capsys, "logs", "--job", "/3.json")
    assert code == 2 and "as 'tfdist jobs' lists them, received /3.json" in errors


@pytest.mark.parametrize(
    "words", [["top"], ["tasks"], ["scale", "2"], ["debug", "dump"], ["metrics", "targets"]]
)
def test_commands_about_a_job_that_has_ended(folder, words, capsys):
    with registered(entry("1-a")) as note_end:
        note_end(3, {})
    code, _, errors = ran(capsys, *words, "--job", "/1-a.json")
    assert code == 2
    told = f"tfdist {words[0]}: error: /1-a.json: the job has ended: exit code 3, "
    assert re.fullmatch(rf"{re.escape(told)}\d+ s ago\n", errors), errors
    (folder / "1-a.log").write_text("line\n")
    assert (
        "; 'tfdist logs --job /1-a.json' prints its output"
        in ran(capsys, *words, "--job", "/1-a.json")[2]
    )
    with registered(entry("2-b")):
        pass
    errors = ran(capsys, *words, "--job", "/2-b.json")[2]
    assert errors.endswith("/2-b.json: the job has ended: its launcher was killed\n")


def test_a_job_that_is_not_listed_is_told_by_its_file(tmp_path, capsys):
    code, _, errors = ran(capsys, "top", "--job", str(tmp_path / "job.json"))
    assert code == 2 and "expected a job file of your own" in errors


def test_the_newest_jobs(capsys):
    for number in range(25):
        with registered(entry(f"{number}-a", began=float(number))):
            pass
    with registered(entry("30-a", began=0.5)):
        _, out, errors = ran(capsys, "jobs")
        shown = [line.split()[4] for line in out.splitlines()[1:]]
        assert shown == [*(f"/{number}-a.json" for number in range(24, 5, -1)), "/30-a.json"]
        assert errors == "6 older ones have ended: tfdist jobs --all\n"
        assert len(ran(capsys, "jobs", "--all")[1].splitlines()) == 27
        assert len(json.loads(ran(capsys, "jobs", "--json")[1])) == 26


@pytest.mark.parametrize("name", ["worker 1", "worker-1", "worker:1", "worker1"])
def test_names_of_a_task(folder, name, capsys):
    with registered(entry("1-a", tasks=["worker 0", "worker 1", "chief"])):
        (folder / "1-a.log").write_text("[worker 0] a\n[worker 1] b\n[chief] c\n")
        assert ran(capsys, "logs", name) == (0, "[worker 1] b\n", "")
        assert ran(capsys, "logs", "chief") == (0, "[chief] c\n", "")
        assert "received 'worker-11'" in ran(capsys, "logs", "worker-11")[2]


def test_a_crafted_entry_is_no_job(folder, tmp_path):
    with registered(entry("1-a")):
        pass
    (folder / "2-b.job").write_text("[" * 5000)
    (folder / "3-c.job").write_text('{"name": 5}')
    (folder / "4-d.job").write_text(
        json.dumps(dict(json.loads((folder / "1-a.job").read_text()), pid="1"))
    )
    for number, exits in enumerate(([], {"worker 0": "1"}, 5)):
        crafted = dict(json.loads((folder / "1-a.job").read_text()), exits=exits)
        (folder / f"7-{number}.job").write_text(json.dumps(crafted))
    (folder / "5-e.job").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "6-f.job")
    assert [job.name for job in jobs()] == ["1-a"]


def test_entries_are_kept_for_a_day(folder, monkeypatch):
    with registered(entry("1-a")) as note_end:
        note_end(0, {})
    (folder / "1-a.states").mkdir()
    (folder / "1-a.states" / "worker-0.json").write_text("{}")
    (folder / "1-a.log").write_text("line\n")
    (folder / "1-a.log.1").write_text("line\n")
    later = time.time() + job_registry._KEPT + 10
    monkeypatch.setattr(job_registry.time, "time", lambda: later)
    with registered(entry("2-b")):
        assert [path.name for path in folder.iterdir()] == ["2-b.job"]


def test_without_a_directory_of_ones_own_a_job_is_not_listed(folder):
    folder.mkdir(mode=0o755)
    with registered(entry("1-a")) as note_end:
        note_end(0, {})
    assert jobs() == [] and list(folder.iterdir()) == []


def test_a_signal_is_not_sent_to_another_process(folder):
    with registered(entry("1-a")):
        (job,) = jobs()
    # It has ended; this process has the number now.
    job_registry.tell(job, signal.SIGTERM)


def test_the_kept_output_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_output, "MAX_BYTES", 20)
    kept = kept_output.KeptOutput(tmp_path / "log")
    for i in range(7):
        kept.line(b"line %d" % i)
    kept.close()
    kept.line(b"of an agent that ends")  # after the job
    assert (tmp_path / "log.1").read_text() == "line 3\nline 4\nline 5\n"
    assert (tmp_path / "log").read_text() == "line 6\n"


def test_output_that_cannot_be_kept_is_left_out(tmp_path):
    kept = kept_output.KeptOutput(tmp_path / "missing" / "log")
    kept.line(b"line")
    kept.close()
