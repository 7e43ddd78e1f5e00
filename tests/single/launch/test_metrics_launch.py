"""`tfdist run` and metrics: ports, by default too, the job file, restarts, `tfdist metrics`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

from support.launching import Launcher
from tfdist.cli.main import main
from tfdist.config.cluster import Cluster
from tfdist.config.job_file import JobFile
from tfdist.config.settings import Settings
from tfdist.control.signing import metrics_token
from tfdist.launch import metrics_ports
from tfdist.launch.job_registry import jobs
from tfdist.launch.metrics_ports import MetricsPorts
from tfdist.launch.ports import free_ports, free_range
from tfdist.launch.run import LaunchOptions, plan

SECRET = "a secret of sixteen"
TELL = """
say(json.dumps([me, os.environ.get("TFDIST_METRICS_PORT"), os.environ["TF_CONFIG"]]))
wait_for_file("continue")
"""


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def told(lines):
    """The tasks' output, by their names."""
    return {task[0]: task[1:] for task in (json.loads(line.partition("] ")[2]) for line in lines)}


def test_the_job_file_has_the_address_of_each_task(launch, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDIST_METRICS_PORT", "0")
    monkeypatch.setenv("TFDIST_SECRET", SECRET)
    path = tmp_path / "job.json"
    options = ("--workers", "2", "--ps", "1", "--evaluator", "--data-workers", "1")
    running = launch(TELL, *options, "--job-file", str(path))
    tasks = told(running.read_lines(6))
    ports = {int(port) for port, _ in tasks.values()}
    assert len(ports) == 1
    (first,) = ports
    places = {}
    for _, config in tasks.values():
        cluster = Cluster.from_tf_config(config)
        places[cluster.task_name] = f"127.0.0.1:{first + cluster.global_index}"
    assert JobFile.read(path).metrics == places
    names = {"chief", "worker 0", "ps 0", "evaluator 0", "data_dispatcher", "data_worker 0"}
    assert places.keys() == names
    assert main(["metrics", "targets", "--job", str(path)]) == 0
    out, err = capsys.readouterr()
    (group,) = json.loads(out)
    assert f"'tfdist metrics config --job {path}' prints a configuration" in err
    assert sorted(group["targets"]) == sorted(places.values()) and len(set(group["targets"])) == 6
    assert main(["metrics", "token", "--job", str(path)]) == 0
    token = capsys.readouterr().out
    assert main(["metrics", "token"]) == 0
    assert token == capsys.readouterr().out == metrics_token(SECRET.encode()) + "\n"
    assert main(["metrics", "config", "--job", str(path)]) == 0
    (scraped,) = yaml.safe_load(capsys.readouterr().out)["scrape_configs"]
    assert scraped["authorization"] == {"credentials": token.strip()}
    assert scraped["static_configs"] == [group]
    (tmp_path / "continue").touch()
    assert running.finish()[0] == 0


def test_a_port_of_ones_own(launch, tmp_path, monkeypatch):
    port = free_range(2)
    monkeypatch.setenv("TFDIST_METRICS_PORT", str(port))
    running = launch(TELL, "--workers", "2", "--job-file", str(tmp_path / "job.json"))
    assert {found for found, _ in told(running.read_lines(2)).values()} == {str(port)}
    expected = {"worker 0": f"127.0.0.1:{port}", "worker 1": f"127.0.0.1:{port + 1}"}
    assert JobFile.read(tmp_path / "job.json").metrics == expected
    (tmp_path / "continue").touch()
    code, _, err = running.finish()
    assert code == 0 and not err


DEFAULTS = """
names = ("METRICS_PORT", "METRICS_BY_DEFAULT", "METRICS_SAME_PORT", "STATE_DIR")
say(json.dumps([me, *(os.environ.get("TFDIST_" + name) for name in names)]))
wait_for_file("continue")
"""


@pytest.mark.parametrize("is_nested", [False, True])
def test_metrics_by_default(launch, tmp_path, monkeypatch, is_nested):
    """Also in a task of another job, whose port is no wish of the user's."""
    (outer,) = free_ports(1)
    if is_nested:
        monkeypatch.setenv("TFDIST_METRICS_PORT", str(outer))
        monkeypatch.setenv("TFDIST_METRICS_BY_DEFAULT", "1")
        monkeypatch.setenv("TFDIST_STATE_DIR", str(tmp_path / "outer"))
    # It is about a port that a user asks for.
    monkeypatch.setenv("TFDIST_METRICS_SAME_PORT", "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    running = launch(DEFAULTS, "--workers", "2", "--job-file", str(tmp_path / "job.json"))
    tasks = told(running.read_lines(2))
    (job,) = jobs()
    assert tasks["worker 0"] == tasks["worker 1"]
    port, by_default, same_port, states = tasks["worker 0"]
    assert (by_default, same_port, states) == ("1", None, str(job.states))
    first = int(port)
    assert first != outer and first not in range(32768, 61000)
    expected = {"worker 0": f"127.0.0.1:{first}", "worker 1": f"127.0.0.1:{first + 1}"}
    assert JobFile.read(tmp_path / "job.json").metrics == expected
    (tmp_path / "continue").touch()
    assert running.finish()[::2] == (0, [])


@pytest.mark.parametrize("asked", [None, "0"])
def test_no_metrics(launch, tmp_path, monkeypatch, asked):
    if asked is not None:
        monkeypatch.setenv("TFDIST_METRICS_PORT", asked)
    (tmp_path / "continue").touch()
    running = launch(DEFAULTS, "--no-metrics")
    assert told(running.finish()[1])["worker 0"][:2] == [None, None]
    code, _, err = launch(DEFAULTS, "--no-metrics", "--dashboard").finish()
    assert code == 2 and "--dashboard: expected tasks that serve metrics" in err[-1]


def test_no_free_ports_by_default_are_no_failure(capsys, monkeypatch):
    def none_free(count):
        raise OSError(f"expected {count} free ports that follow each other, found none")

    monkeypatch.setattr(metrics_ports, "free_range", none_free)
    tasks = plan(LaunchOptions(Path("train.py"), workers=2))
    assert metrics_ports.choose(tasks, Settings(), is_here=True) == MetricsPorts()
    assert "the tasks serve no metrics: expected 2 free ports" in capsys.readouterr().err
    with pytest.raises(OSError, match="expected 2 free ports"):
        metrics_ports.choose(tasks, Settings(metrics_port=0), is_here=True)


def test_tasks_of_other_hosts_serve_metrics_on_demand_alone():
    tasks = plan(LaunchOptions(Path("train.py"), workers=2))
    assert metrics_ports.choose(tasks, Settings(), is_here=False) == MetricsPorts()
    asked = metrics_ports.choose(tasks, Settings(metrics_port=0), is_here=False)
    assert asked.first and not asked.by_default and len(asked.addresses) == 2


def test_the_path_of_the_job_file_is_told_unless_it_was_chosen(launch, tmp_path):
    (tmp_path / "continue").touch()
    told = launch(TELL)
    assert told.finish()[2] == [] and len(told.told) == 1
    chosen = launch(TELL, "--job-file", str(tmp_path / "job.json"))
    assert chosen.finish()[2] == [] and chosen.told == []


@pytest.mark.parametrize(
    "port, problem",
    [("65535", "expected 2 ports from 65535 on"), ("70000", "expected a port number in 0..65535")],
)
def test_ports_that_do_not_exist(launch, monkeypatch, port, problem):
    monkeypatch.setenv("TFDIST_METRICS_PORT", port)
    code, _, err = launch(TELL, "--workers", "2").finish()
    assert code == 1
    assert any("TFDIST_METRICS_PORT" in line and problem in line for line in err)


def test_a_port_for_all_tasks_is_refused(launch, monkeypatch):
    monkeypatch.setenv("TFDIST_METRICS_PORT", "0")
    monkeypatch.setenv("TFDIST_METRICS_SAME_PORT", "1")
    code, _, err = launch(TELL, "--workers", "2").finish()
    assert code == 1
    assert any("TFDIST_METRICS_SAME_PORT: expected 0 with tfdist run" in line for line in err)


def test_tasks_are_told_how_often_they_were_restarted(launch):
    body = """
    number = os.environ["TFDIST_RESTARTS"]
    say(f"{me} {number}")
    (here / f"told {me} {number}").touch()
    wait_for_file(f"told worker * {number}", 2)
    sys.exit(me == "worker 1" and number < "2")
    """
    options = {"ps": 0, "workers": 2, "restarts": 3}
    code, out, _ = launch(body, **options).finish()
    told = [line.partition("] ")[2] for line in out]
    assert code == 0
    assert sorted(told) == [f"worker {i} {n}" for i in range(2) for n in range(3)]


def test_of_a_job_without_metrics(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TFDIST_SECRET", raising=False)
    with JobFile("{}").written(tmp_path / "job.json") as path:
        for arguments, problem in (
            (["targets"], "targets: expected --job"),
            (["config"], "config: expected --job"),
            (["config", "--job", str(path)], "received none of them"),
            (["targets", "--job", str(path)], "received none of them"),
            (["targets", "--job", str(tmp_path / "none")], "expected a job file"),
            (["token"], "received no secret"),
            (["token", "--job", str(path)], "received no secret"),
        ):
            assert main(["metrics", *arguments]) == 2
            assert problem in capsys.readouterr().err


def test_free_ranges():
    port = free_range(3)
    assert port not in range(32768, 61000)
    (taken,) = free_ports(1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken))
        with pytest.raises(OSError, match="expected 3 free ports that follow each other"):
            free_range(3, [taken - 2, taken - 1, taken])
        assert free_range(3, [taken - 1, port]) == port
