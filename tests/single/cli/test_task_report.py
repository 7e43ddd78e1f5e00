"""`tfdist tasks`: its output, and errors."""

from __future__ import annotations

import json

import pytest

import tfdist.cli.main
from tfdist.config.cluster import Cluster
from tfdist.config.job_file import JobFile
from tfdist.config.settings import Settings
from tfdist.control.held_calls import ClientContext
from tfdist.data.queue import report
from tfdist.data.queue.client import TaskClient
from tfdist.data.queue.description import Description, Spec
from tfdist.data.queue.master import TaskMaster
from tfdist.errors import ClusterConfigError
from tfdist.job.plane import ControlPlane
from tfdist.launch.ports import free_ports

QUEUE = {
    "name": "train",
    "epoch": 1,
    "epochs": 3,
    "tasks": 9,
    "done": 4,
    "todo": 3,
    "records": 13_000,
    "left": 4_500,
    "rate": 500.0,
    "time_left": 27.0,
    "pending": [
        {
            "task": "task 5 (records 5000 to 5999)",
            "epoch": 1,
            "owner": "worker 0 at a:1",
            "seconds": 2.2,
            "silent": 0.4,
        }
    ],
    "parked": [{"task": "task 7 (records 0 to 9 of 'x')", "deaths": 3}],
}


def test_what_is_printed():
    assert report.describe([QUEUE]) == (
        "queue train: epoch 2 of 3: 4 of 9 tasks done, 1 pending, 3 to do, 1 parked\n"
        "  500 records/s, 0 min 27 s left; 13000 records done, 4500 left in this epoch\n"
        "  pending  task 5 (records 5000 to 5999) of epoch 2: worker 0 at a:1, for 2 s, last heard "
        "of 0 s ago\n"
        "  PARKED   task 7 (records 0 to 9 of 'x'): 3 workers in a row have died with it"
    )


def test_an_endless_queue_has_no_end_in_sight():
    text = report.describe([QUEUE | {"epochs": None, "time_left": None}])
    assert "epoch 2: 4 of 9" in text and "time left unknown" in text


def test_a_queue_whose_records_are_counted():
    text = report.describe([{"name": "train", "counted_by": "worker 1 at b:2"}])
    assert text == "queue train: worker 1 at b:2 counts its records"


def test_names_do_not_steer_the_terminal():
    text = report.describe([QUEUE | {"name": "\x1b]0;owned\x07\nqueue other: done"}])
    assert "\x1b" not in text and len(text.splitlines()) == 4
    assert len(report.describe([QUEUE | {"name": "x" * 9999}]).splitlines()[0]) < 1200


def test_many_pending_tasks_are_cut_short():
    text = report.describe([QUEUE | {"pending": QUEUE["pending"] * 900}])
    assert "... and 700 more" in text and len(text.splitlines()) == 204


def test_which_tasks():
    config = {"cluster": {"worker": ["w:1", "w:2"], "ps": ["a:1", "b:2"]}}
    assert report.masters_of(json.dumps(config)) == ["a:1", "w:1"]
    for wrong in ("", "{", '{"cluster": {}}'):
        with pytest.raises(ClusterConfigError):
            report.masters_of(wrong)


def test_a_running_job(tmp_path, capsys):
    address, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    cluster = Cluster(workers=(address, other))
    master = TaskMaster(cluster)
    settings = Settings(secret=b"of this job " * 3)
    path = tmp_path / "job.json"
    job_file = JobFile(cluster.tf_config(), settings.secret.decode())
    with ControlPlane(cluster, settings, master.handlers), job_file.written(path):
        command = ["tasks", "--job", str(path)]
        assert tfdist.cli.main.main(command) == 0
        assert "no data tasks yet" in capsys.readouterr().out
        spec = Spec("ranges", 10, 4, "", (), 2, False, 1, 5.0)

        def call(method, request, wait):
            return master.handlers[method](request, ClientContext())

        client = TaskClient(cluster, "process", call, "rank 0", 5.0, None)
        client.open("train", spec, lambda: Description(spec))
        task = client.lease("train", 0, waits=False, wait=0.0)
        client.report("train", {task.lease: 3})
        assert tfdist.cli.main.main(command) == 0
        shown = capsys.readouterr().out
        assert "queue train: epoch 1 of 2: 0 of 3 tasks done, 1 pending, 2 to do" in shown
        assert "task 0 (records 3 to 3) of epoch 1: worker 0, for 0 s" in shown
        assert address not in shown
        # Without the secret.
        assert tfdist.cli.main.main(["tasks", "--address", address]) == 1
        assert "secret" in capsys.readouterr().err


def test_errors(capsys, tmp_path):
    (port,) = free_ports(1)
    assert tfdist.cli.main.main(["tasks", "--address", f"127.0.0.1:{port}"]) == 1
    assert tfdist.cli.main.main(["tasks", "--address", "nowhere"]) == 2
    assert tfdist.cli.main.main(["tasks", "--job", str(tmp_path / "none")]) == 2
    assert tfdist.cli.main.main(["tasks", "--address", "a:1", "--job", "b"]) == 2
    assert "expected one of --address and --job" in capsys.readouterr().err
