"""`tfdist predict`: one process, workers that are started again, and errors that end the job."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.launching import wait_until_gone
from support.patience import PATIENCE, wait_until
from support.served_tables import write_model
from support.tiers import rounds
from support.warm_python import interpreter
from tfdist.cli.main import main
from tfdist.observe.live import targets
from tfdist.observe.live.dashboard import JobView
from tfdist.observe.live.job_record import JobRecord
from tfdist.observe.live.sampler import Sampler
from tfdist.prediction.options import FINAL_CODE

PACKAGE = str(Path(tfdist.__file__).parents[1])
ROWS = 200
MAP = """
import os, signal, time
import tensorflow as tf

def parse(line):
    fields = tf.strings.split(line, ",")
    return {"id": tf.strings.to_number(fields[0], tf.int64), "x": tf.strings.to_number(fields[1:3])}

def deadly(line):
    features = parse(line)
    def kill(id):
        if id == 77:
            os.kill(os.getpid(), signal.SIGKILL)
        return id
    features["id"] = tf.ensure_shape(tf.numpy_function(kill, [features["id"]], tf.int64), [])
    return features

def slow(line):
    features = parse(line)
    def wait(id):
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            time.sleep(0.01)
        time.sleep(0.1)
        return id
    features["id"] = tf.ensure_shape(tf.numpy_function(wait, [features["id"]], tf.int64), [])
    return features

def paced(line):
    features = parse(line)
    def wait(id):
        if not os.path.exists(os.path.join(os.path.dirname(__file__), "fast")):
            time.sleep(0.02)
        return id
    features["id"] = tf.ensure_shape(tf.numpy_function(wait, [features["id"]], tf.int64), [])
    return features
"""


@pytest.fixture
def job(tmp_path):
    """A folder with input, a model and maps; returns the options of the command."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.export(tmp_path / "served", verbose=False)
    lines = [f"{i},{i / 8},{-i}" for i in range(ROWS)]
    (tmp_path / "in-0.csv").write_text("\n".join(["id,a,b", *lines[:110]]) + "\n")
    (tmp_path / "in-1.csv").write_text("\n".join(["id,a,b", *lines[110:]]) + "\n")
    (tmp_path / "prep.py").write_text(MAP)

    def options(output="out", map="parse", **others):
        words = {
            "model": tmp_path / "served",
            "input": tmp_path / "in-*.csv",
            "reader": "lines",
            "header": 1,
            "output": tmp_path / output,
            "map": f"{tmp_path / 'prep.py'}:{map}",
            "keep": "id",
            "format": "jsonl",
            "task-size": 30,
            "batch-size": 8,
            **others,
        }
        pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in words.items())
        return ["predict", *(word for pair in pairs for word in pair)]

    return options


def ids(folder):
    paths = sorted(folder.glob("part-*"))
    return [json.loads(line)["id"] for p in paths for line in p.read_text().splitlines()]


def parts(folder):
    return {p.name: p.read_bytes() for p in folder.glob("part-*")}


def started(options, timeout=120):
    """Runs `tfdist` in a process; returns its exit code and output."""
    done = subprocess.run(
        [interpreter(), "-m", "tfdist", *options],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout * PATIENCE,
    )
    return done.returncode, done.stdout.decode()


@contextlib.contextmanager
def running(options):
    """Starts `tfdist` in a process; yields it, and kills it at the end."""
    process = subprocess.Popen(
        # A shell's background processes ignore Ctrl-C, and so would their children.
        ["env", "--default-signal=INT", interpreter(), "-m", "tfdist", *options],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def names_in(folder):
    return os.listdir(folder) if folder.exists() else []


def test_this_process_is_a_worker(tmp_path, job, capsys):
    assert main(job()) == 0
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert "tfdist predict: 200 rows in 7 parts" in capsys.readouterr().out
    assert main(job()) == 0  # nothing is left to do
    x = np.array([[i / 8, -i] for i in range(ROWS)], np.float32)
    loaded = tf.saved_model.load(tmp_path / "served")
    expected = loaded.serve(x).numpy()
    lines = "".join(content.decode() for _, content in sorted(parts(tmp_path / "out").items()))
    found = [json.loads(line)["output_0"] for line in lines.splitlines()]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_map_imports_files_of_its_folder(tmp_path, job, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_map.py").write_text(MAP)
    (tmp_path / "importing.py").write_text(
        "from __future__ import annotations\nimport dataclasses\nimport beside_the_map\n\n"
        "@dataclasses.dataclass\nclass Columns:\n    id: int\n\n"
        "def parse(line):\n    return beside_the_map.parse(line)\n"
    )
    assert main([*job(), "--map", f"{tmp_path / 'importing.py'}:parse"]) == 0
    assert ids(tmp_path / "out") == list(range(ROWS))


@pytest.mark.parametrize("master", [None, "198.51.100.1"])
def test_a_rank_of_mpi_waits_for_no_other_one(tmp_path, job, monkeypatch, capsys, master):
    """Ranks on several hosts: training needs the host of rank 0, and rank 0 itself."""
    variables = {"RANK": "1", "SIZE": "2", "LOCAL_SIZE": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    if master is not None:
        monkeypatch.setenv("MASTER_ADDR", master)
    assert main(job()) == 0
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert "parts, 0 records" not in capsys.readouterr().out  # the first worker shows the progress


@pytest.mark.long(covered_by="single/prediction/test_deaths.py")
@pytest.mark.timeout(170)
def test_a_deadly_record_is_parked_by_restarted_workers(tmp_path, job):
    code, out = started(job(map="deadly", errors="park", workers=2))
    assert code == 0, out
    assert ids(tmp_path / "out") == [i for i in range(ROWS) if i != 77]
    (rejected,) = (tmp_path / "out/_rejected").iterdir()
    bad = json.loads(rejected.read_text())
    assert bad == {"file": "in-0.csv", "record": 77, "message": "has killed its worker 3 times"}
    assert out.count("killed by SIGKILL; starting it again") == 4
    assert "tfdist predict: 199 rows in 7 parts, 1 bad records in _rejected" in out


@pytest.mark.long(covered_by="parallel/prediction/test_predict_deaths.py")
@pytest.mark.timeout(rounds(170, 600))
def test_workers_come_and_go(tmp_path, job):
    most = rounds(4, 8)
    assert main(job(output="whole")) == 0
    words = job(map="slow", workers="2:8", job_file=tmp_path / "job.json")
    process = subprocess.Popen(
        [interpreter(), "-m", "tfdist", *words],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    rooms = tmp_path / "out/_job"

    def living():
        return len(os.listdir(rooms / "workers")) if rooms.exists() else 0

    try:
        wait_until(lambda: living() == 2, "two workers", 120)
        for count in (most, 2):
            assert len(os.listdir(rooms / "records")) < 7
            assert main(["scale", str(count), "--job", str(tmp_path / "job.json")]) == 0
            wait_until(lambda count=count: living() == count, f"{count} workers", 120)
            if count == most:
                (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=120 * PATIENCE)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert process.returncode == 0, out.decode()
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert parts(tmp_path / "out") == parts(tmp_path / "whole")
    assert b"starting it again" not in out


@pytest.mark.long(covered_by="single/prediction/test_predict.py")
@pytest.mark.timeout(170)
def test_a_running_job_is_shown_by_top_and_dashboard(tmp_path, job, capsys):
    """As docs/operate/dashboard.md says."""
    file, rooms = tmp_path / "job.json", tmp_path / "out/_job"
    with running(job(map="slow", workers=2, job_file=file)) as process:
        wait_until(lambda: len(names_in(rooms / "workers")) == 2, "two workers", 120)
        wait_until(lambda: names_in(rooms / "claims"), "a claim", 60)
        capsys.readouterr()
        assert main(["top", "--once", "--job", str(file)]) == 0
        lines = capsys.readouterr().out.splitlines()
        sampler = Sampler(targets.find(file, None))
        shown = json.loads(JobView(sampler, "", JobRecord([], None, lambda: None)).json())
        sampler.close()
        (tmp_path / "go").touch()
        (tmp_path / "fast").touch()
        out = process.communicate(timeout=120 * PATIENCE)[0].decode()
    assert process.returncode == 0, out
    assert lines[0] == "2 of 2 tasks answer"
    assert [line.split()[:2] for line in lines[2:4]] == [["worker", "0"], ["worker", "1"]]
    (queue,) = (line for line in lines if line.startswith("queue"))
    assert re.match(r"queue predict: 0 of 7 data tasks done, [1-7] pending, 0 parked", queue)
    assert [task["name"] for task in shown["tasks"]] == ["worker 0", "worker 1"]
    (queue,) = shown["queues"]
    assert (queue["name"], queue["done"], queue["parked"]) == ("predict", 0, 0)
    assert queue["to_do"] + queue["pending"] == 7


@pytest.mark.long("*-SIGTERM", covered_by="the other cases")
@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        pytest.param(signal.SIGINT, 130, "interrupted", id="SIGINT"),
        pytest.param(signal.SIGTERM, 143, "told to end by SIGTERM", id="SIGTERM"),
    ],
)
@pytest.mark.parametrize("workers", [None, 2], ids=["alone", "launched"])
@pytest.mark.timeout(170)
def test_a_stopped_job_says_what_is_done_and_continues(
    tmp_path, job, workers, number, code, reason
):
    assert main(job(output="whole")) == 0
    words = job(map="paced", **({"workers": workers} if workers else {}))
    records = tmp_path / "out/_job/records"
    with running(words) as process:
        wait_until(lambda: names_in(records), "a part", 120)
        process.send_signal(number)
        out = process.communicate(timeout=60 * PATIENCE)[0].decode()
    assert process.returncode == code, out
    assert "Traceback" not in out and "killing" not in out
    told = re.findall(rf"tfdist predict: {reason}: (\d) of 7 parts are committed in (.*); the", out)
    assert len(told) == 1 and told[0][1] == str(tmp_path / "out"), out
    left = len(names_in(records))
    assert left < 7 and (int(told[0][0]) == left or workers), out
    for room in ("claims", "staged", "workers"):
        assert names_in(tmp_path / "out/_job" / room) == []
    (tmp_path / "fast").touch()
    assert main(job(map="paced")) == 0
    assert parts(tmp_path / "out") == parts(tmp_path / "whole")


@pytest.mark.long(covered_by="parallel/prediction/test_predict_deaths.py")
@pytest.mark.timeout(rounds(170, 600))
def test_a_killed_launcher(tmp_path, job):
    """Its workers end with it; the same command continues, at once."""
    kills, choose = 5, random.Random(8)
    assert main(job(output="whole")) == 0
    words = job(map="paced", workers="2:4")
    rooms = tmp_path / "out/_job"
    for kill in range(kills):
        with running(words) as process:
            due = 1 + kill
            wait_until(lambda due=due: len(names_in(rooms / "records")) >= due, "parts", 120)
            wait_until(lambda: names_in(rooms / "claims"), "a claim", 120)
            time.sleep(choose.uniform(0.0, 0.3))
            workers = [int(name.split("-")[1]) for name in names_in(rooms / "workers")]
            process.kill()
        assert not (tmp_path / "out/_SUCCESS").exists()
    (tmp_path / "fast").touch()
    code, out = started(words)
    assert code == 0, out
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert parts(tmp_path / "out") == parts(tmp_path / "whole")
    for pid in workers:
        wait_until_gone(pid)
    for room in ("claims", "staged", "workers"):
        assert names_in(rooms / room) == []


def test_a_final_error_ends_the_job_at_once(tmp_path, job):
    code, out = started(job(model=tmp_path, workers="1:3:2"))
    assert code == FINAL_CODE, out
    assert "expected a folder with a saved_model.pb" in out
    assert "starting it again" not in out


def test_errors_of_the_command(tmp_path, job, capsys):
    cases = [
        ({"model": tmp_path / "none"}, "found no such path"),
        (
            {"model": write_model(tmp_path / "rowless")},
            "its tables are on servers: expected their addresses",
        ),
        ({"input": tmp_path / "none*"}, "found none"),
        ({"map": "absent"}, "expected a function: module 'prep' has no attribute 'absent'"),
        ({"keep": "name"}, "received 'name'"),
        ({"signature": "other"}, "expected the signature 'other', found ['serv"),
        ({"output": "."}, "expected a new or empty folder"),
    ]
    for i, (options, text) in enumerate(cases):
        assert main(job(**{"output": f"out {i}", **options})) == FINAL_CODE
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--model", "served"])
    assert ended.value.code == 2
