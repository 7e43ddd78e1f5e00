"""Benchmarks, run as documented, with small sizes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import PACKAGE
from support.patience import PATIENCE

ROOT = Path(__file__).parents[3]


def run(*command: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3"),
        capture_output=True,
        text=True,
        timeout=110 * PATIENCE,
    )


@pytest.mark.long(covered_by="single/ops/test_local_reduce.py")
@pytest.mark.timeout(120)
def test_local_reduce_compares_in_every_situation(tmp_path):
    file = tmp_path / "figures" / "local_reduce.json"
    finished = run(
        *(sys.executable, "benchmarks/local_reduce.py", "--devices", "4"),
        *("--scale", "0.02", "--rounds", "3", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    # Hierarchical: every device concatenates its 1 K bytes (8 K moved in all), two pairs and then
    # the two sums are added (9 K), and every device splits the result (8 K).
    times_least = {
        "tfdist": 1,
        "stock default": None,  # collectives: the graph does not show their traffic
        "ReductionToOneDevice": 1,
        "HierarchicalCopyAllReduce": 25 / 5,
        "memcpy of the least": 1,
    }
    for row in rows:
        times = times_least[row["implementation"]]
        moved = None if times is None else pytest.approx(times * row["least_bytes"])
        assert row["devices"] == 4 and row["moved_bytes"] == moved
        assert row["seconds"] > 0
    shown = {(row["situation"], row["implementation"]) for row in rows}
    assert len(shown) == len(rows) == 3 * len(times_least)
    for name in times_least:
        assert sum(f"{name}  " in line for line in finished.stdout.splitlines()) == 3


@pytest.mark.long(covered_by="parallel/ps/test_ps_sync.py")
@pytest.mark.timeout(120)
def test_parameter_server_compares_with_stock_and_a_bare_socket(tmp_path):
    file = tmp_path / "figures" / "parameter_server.json"
    finished = run(
        *(sys.executable, "benchmarks/parameter_server.py", "--variables", "4"),
        *("--megabytes", "0.1", "--rounds", "3", "--steps", "2", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    assert all(row["theirs"] > 0 and row["tfdist"] > 0 for row in rows)
    compared = [(row["case"], row["peer"], row["bytes"]) for row in rows]
    # 0.1 MB in 4 variables of 6,553 elements; a twenty-fifth in 4 of 262.
    large, small = 4 * 4 * 6553, 4 * 4 * 262
    assert compared == [
        ("steps/s", "stock", large),
        ("ms per pull", "stock", large),
        ("ms per push", "stock", large),
        ("ms per pull", "bare socket", small),
        ("ms per pull", "bare socket", large),
    ]
    for row in rows:
        line = rf" {row['theirs']:.2f} +{row['tfdist']:.2f} +{row['ratio']:.1f}x"
        assert re.search(line, finished.stdout), finished.stdout


@pytest.mark.long(covered_by="parallel/embedding/test_embedding_parity.py")
@pytest.mark.timeout(120)
def test_embedding_compares_with_stock(tmp_path):
    file = tmp_path / "figures" / "embedding.json"
    finished = run(
        *(sys.executable, "benchmarks/embedding.py", "--rows", "4000", "--width", "8"),
        *("--ids", "300", "--features", "3", "--batch", "100"),
        *("--rounds", "3", "--steps", "2", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    cases = [(row["case"], row["ids"], row["whole_bytes"]) for row in rows]
    assert cases == [("uniform", 300, 2 * 300 * 8 * 4), ("zipfian", 300, 2 * 300 * 2 * 4)]
    for row in rows:
        assert row["stock"] > 0 and row["tfdist"] > 0
        rates = " +".join(f"{300 * row[name]:.0f}" for name in ("stock", "by op", "tfdist"))
        line = rf"{row['case']} +ids/s +{rates} "
        assert re.search(line, finished.stdout), finished.stdout
    uniform, zipfian = (row["sent_bytes"] for row in rows)
    # Few of 300 ids out of 4,000 are equal, but many of 100 zipfian ones; a gradient has an id.
    assert 0.9 * 300 * (2 * 8 * 4 + 8) < uniform < 300 * (2 * 8 * 4 + 8) + 200
    assert zipfian < 0.8 * 300 * (2 * 2 * 4 + 8)


@pytest.mark.long(covered_by="parallel/embedding/test_worker_tables.py")
@pytest.mark.timeout(120)
def test_worker_tables_compares_with_a_server(tmp_path):
    file = tmp_path / "figures" / "worker_tables.json"
    finished = run(
        *(sys.executable, "benchmarks/worker_tables.py", "--rows", "4000", "--width", "8"),
        *("--ids", "300", "--features", "3", "--batch", "100"),
        *("--rounds", "3", "--steps", "2", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    assert [(row["case"], row["ids"]) for row in rows] == [("uniform", 600), ("zipfian", 600)]
    for row in rows:
        rates = " +".join(f"{600 * row['steps'][name]:.0f}" for name in ("workers", "1 server"))
        assert re.search(rf"{row['case']} +ids/s +{rates} ", finished.stdout), finished.stdout
        # Of two workers, half of the ids are a worker's own.
        assert 0.4 < row["bytes"]["workers"] / row["formula_bytes"] < 0.6
        assert 0.95 < row["bytes"]["1 server"] / row["formula_bytes"] < 1.05


@pytest.mark.long(covered_by="single/ps/test_ps_table_files.py")
@pytest.mark.timeout(120)
def test_embedding_store_compares_with_hash_tables(tmp_path):
    file = tmp_path / "figures" / "embedding_store.json"
    finished = run(
        *(sys.executable, "benchmarks/embedding_store.py", "--rows", "50000", "--width", "4"),
        *("--batch", "3000", "--rounds", "3", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    report = json.loads(file.read_text())
    # An id, its time of use and count, and 8 float32.
    snapshot = report["snapshot"]
    assert 50_000 * (32 + 16) <= snapshot["bytes"] < 1.1 * 50_000 * (32 + 16)
    assert snapshot["longest"] >= snapshot["step_during"] > 0
    assert re.search(rf"at {snapshot['rate'] / 1e6:.0f} MB/s", finished.stdout)
    # A row and its accumulator: 8 float32.
    assert (report["rows"], report["raw_bytes"]) == (50_000, 32)
    assert list(report["figures"]) == ["MutableHashTable", "tfdist"]
    for name, figures in report["figures"].items():
        assert figures["bytes"] > 32
        rates = [figures[what] for what in ("insert", "look_up", "update")]
        assert min(rates) > 0
        numbers = " +".join(f"{rate:.0f}" for rate in rates)
        line = rf"{name} +{figures['bytes']:.1f} +{figures['bytes'] / 32:.2f}x +{numbers}\n"
        assert re.search(line, finished.stdout), finished.stdout


@pytest.mark.long(covered_by="single/ops/test_compression_methods.py")
@pytest.mark.timeout(120)
def test_compression_counts_bytes_of_every_method(tmp_path):
    file = tmp_path / "figures" / "compression.json"
    finished = run(
        *(sys.executable, "benchmarks/compression.py", "--limit", "640", "--epochs", "1"),
        *("--rows", "none", "bf16", "powersgd, rank 1", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    report = json.loads(file.read_text())
    assert (report["parameters"], report["steps"], report["seeds"]) == (106_122, 5, 1)
    # The first kernel (400), the last one (640) and the biases (122) are small.
    thin = 9 * 16 + 32 + 7 * 7 * 32 + 64
    expected = {
        "none": 4 * 106_122,
        "bf16": 2 * (106_122 - 1162) + 4 * 1162,
        "powersgd, rank 1": 4 * (thin + 1162),
    }
    assert {row["name"]: row["bytes_per_step"] for row in report["rows"]} == expected
    for row in report["rows"]:
        assert row["times_fewer"] == expected["none"] / row["bytes_per_step"]
        assert 0 < row["accuracy"] < 1 and row["loss"] > 0
        line = rf"{row['name']} +{row['bytes_per_step']:,.0f} +{row['times_fewer']:.1f}x +"
        assert re.search(line + f"{row['accuracy']:.4f}", finished.stdout), finished.stdout


def test_the_bench_script_lists_the_benchmarks():
    finished = run("scripts/bench", "local_reduce", "no_such")
    assert finished.returncode == 1
    names = " ".join(sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py")))
    assert f"no benchmark 'no_such'; there are: {names}" in finished.stderr


@pytest.mark.long(covered_by="parallel/keras/test_keras_parity.py")
@pytest.mark.timeout(120)
def test_epochs_compare_with_keras_alone(tmp_path):
    file = tmp_path / "epochs.json"
    finished = run(
        *(sys.executable, "benchmarks/epochs.py", "--epochs", "2", "--rounds", "1"),
        *("--busy", "1", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    assert [row["busy"] for row in rows] == [0, 1]
    for row in rows:
        names = ["Keras", "Keras, twice", "tfdist", "devices, stock", "devices, tfdist"]
        assert list(row["epochs"]) == names
        assert all(0 < e["median"] <= e["maximum"] for e in row["epochs"].values())


@pytest.mark.long(covered_by="parallel/keras/test_preemption.py")
@pytest.mark.timeout(120)
def test_preemption_measures_a_job_that_is_told_to_end(tmp_path):
    file = tmp_path / "preemption.json"
    finished = run(
        *(sys.executable, "benchmarks/preemption.py", "--megabytes", "1", "--rounds", "1"),
        *("--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (row,) = json.loads(file.read_text())["rows"]
    # The log, from which these are, rounds both.
    assert 0 < row["saving"] <= row["saved"]
    assert 0 < row["step"] < row["saved"] < row["ended"]


@pytest.mark.long(covered_by="single/serving/test_served_commands.py")
@pytest.mark.timeout(120)
def test_served_tables_survive_a_killed_server(tmp_path):
    file = tmp_path / "served_tables.json"
    finished = run(
        *(sys.executable, "benchmarks/served_tables.py", "--rows", "50000", "--seconds", "4"),
        *("--delta", "1000", "--every", "0.5", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    figures = json.loads(file.read_text())
    assert figures["failed"] == 0
    assert figures["fresh"]
    assert list(figures["requests"]) == ["before", "from the kill on", "cached"]
    for times in figures["requests"].values():
        assert 0 < times["median"] <= times["99 %"] <= times["longest"]


@pytest.mark.long(covered_by="parallel/data/test_data_service.py")
@pytest.mark.timeout(180)
def test_data_service_compares_numbers_of_data_workers(tmp_path):
    file = tmp_path / "data_service.json"
    finished = run(
        *(sys.executable, "benchmarks/data_service.py", "--rows", "64", "--rounds", "1"),
        *("--data_workers", "0,1", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    shown = [(row["pipeline"], row["data_workers"]) for row in rows]
    assert shown == [("computes", 0), ("computes", 1), ("waits", 0), ("waits", 1)]
    assert all(row["rows_per_second"] > 0 for row in rows)


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_faults.py")
def test_scale_lets_ranks_meet_again_after_a_kill(tmp_path):
    file = tmp_path / "scale.json"
    finished = run(
        *(sys.executable, "benchmarks/scale.py", "--ranks", "21", "--processes", "2"),
        *("--core_ranks", "10", "--rounds", "1", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(file.read_text())
    control, core = found["control"], found["core"]
    assert (control["ranks"], control["killed"]) == (21, 10)
    assert (core["ranks"], core["left"]) == (10, 5)
    assert control["seconds"] > 0 and core["reconnect_seconds"] > 0


@pytest.mark.long(covered_by="parallel/data/test_tasks_async.py")
def test_tasks_measures_steps_and_requests(tmp_path):
    file = tmp_path / "tasks.json"
    finished = run(
        *(sys.executable, "benchmarks/tasks.py", "--rounds", "1", "--workers", "4"),
        *("--tasks", "200", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(file.read_text())
    assert set(found["step"]["seconds"]) == {"from_tensor_slices", "from_arrays in tasks"}
    assert {(row["load"], row["signed"]) for row in found["rows"]} == {
        (load, signed) for load in ("all they can", "1000/s") for signed in (False, True)
    }
    # Each task is a lease and a commit, and each worker asks once in vain.
    assert all(row["requests"] == 2 * 200 + 4 for row in found["rows"])


@pytest.mark.long(covered_by="parallel/data/test_tasks_async.py")
def test_task_pushes_compares_three_jobs(tmp_path):
    file = tmp_path / "task_pushes.json"
    finished = run(
        *(sys.executable, "benchmarks/task_pushes.py", "--megabytes", "0.1", "--rounds", "1"),
        *("--steps", "3", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (row,) = json.loads(file.read_text())["rows"]
    assert 0 < row["plain dataset"] and 0 < row["data tasks"] and 0 < row["data tasks, logged"]


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_faults.py")
@pytest.mark.timeout(120)
def test_elastic_measures_faults_of_a_job_that_goes_on(tmp_path):
    file = tmp_path / "elastic.json"
    finished = run(
        *(sys.executable, "benchmarks/elastic.py", "--parts", "recovery,torchrun"),
        *("--workers", "2", "--width", "8", "--kills", "2", "--leaves", "1"),
        *("--torch_python", str(tmp_path / "no_such_python"), "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "PyTorch: not installed; scripts/bench installs it" in finished.stdout
    found = json.loads(file.read_text())["recovery"]
    assert [len(found[what]) for what in ("kills", "leaves", "joins")] == [2, 1, 3]
    for kill in found["kills"]:
        assert 0 < kill["noticed"] < kill["formed"] < kill["seconds"]
    # Steps of one worker may be so much faster that nothing is lost.
    assert all(leave["steps"] * leave["seconds"] > 0 for leave in found["leaves"])
    assert all(join["ready"] > 0 and join["seconds"] > 0 for join in found["joins"])
    assert re.search(r"recovery after SIGKILL +2 .*(reached|missed)", finished.stdout)


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_faults.py")
@pytest.mark.timeout(120)
def test_elastic_compares_with_a_restart_of_all(tmp_path):
    file = tmp_path / "elastic.json"
    finished = run(
        *(sys.executable, "benchmarks/elastic.py", "--parts", "restart"),
        *("--workers", "2", "--width", "8", "--restarts", "1", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (kill,) = json.loads(file.read_text())["restart"]["kills"]
    # A step after a checkpoint may not have been reported when a worker was killed.
    assert kill["seconds"] > 0 and 0 <= kill["repeated"] <= 10


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_faults.py")
@pytest.mark.timeout(120)
def test_elastic_compares_steps_of_two_kinds_of_jobs(tmp_path):
    file = tmp_path / "elastic.json"
    finished = run(
        *(sys.executable, "benchmarks/elastic.py", "--parts", "steady,table", "--pairs", "1"),
        *("--rounds", "2", "--steps", "4", "--scale", "0.02", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["steady"]
    models = ["dense, SGD", "cnn, SGD", "dense, AdamW", "table, Adagrad"]
    assert [row["model"] for row in rows] == models
    for row in rows:
        assert [len(ratios) for ratios in row["ratios"]] == [2]
        assert 0 < row["low"] <= row["ratio"] <= row["high"]
        assert f"{row['low']:.3f} to {row['high']:.3f}" in finished.stdout


@pytest.mark.long(covered_by="parallel/data/test_cut_before_maps.py")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "options", "figures", "shown"),
    [
        ("input_maps", ("--rows", "64", "--epochs", "1", "--workers", "2"), "epochs", "Keras"),
        ("input_images", ("--images", "128", "--epochs", "1"), "images per second", "tfdist, 1"),
    ],
)
def test_input_compares_what_workers_map(name, options, figures, shown, tmp_path):
    file = tmp_path / "input.json"
    finished = run(
        *(sys.executable, f"benchmarks/{name}.py", *options, "--rounds", "1", "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(file.read_text())[figures]
    assert {shown, "tfdist, 2", "whole batches, 2"} <= set(found)
    assert all(value is None or value > 0 for value in found.values())


@pytest.mark.long(covered_by="single/serving/test_predict_requests.py")
@pytest.mark.timeout(120)
def test_serving_compares_with_the_model_in_one_process(tmp_path):
    file = tmp_path / "figures" / "serving.json"
    finished = run(
        *(sys.executable, "benchmarks/serving.py", "--clients", "2", "--seconds", "0.5"),
        *("--rounds", "1", "--ray_python", str(tmp_path / "none"), "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    names = ["in process", "tfdist, gRPC", "tfdist, batches", "tfdist, REST"]
    assert [row["name"] for row in rows] == names
    for row in rows:
        assert row["requests_per_second"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"]
        line = rf" {row['name']} +{row['requests_per_second']:.0f} +{row['p50_ms']:.2f} "
        assert re.search(line, finished.stdout), finished.stdout
    assert "without Ray" in finished.stdout


@pytest.mark.long(covered_by="parallel/ps/test_ps_delays.py")
@pytest.mark.timeout(120 * PATIENCE)
def test_convergence_trains_in_turns(tmp_path):
    file = tmp_path / "figures" / "convergence.json"
    finished = run(
        *(sys.executable, "benchmarks/convergence.py", "--workers", "2", "--epochs", "1"),
        *("--seeds", "1", "--limit", "640", "--rows", "one process", "in turns"),
        *("--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(file.read_text())
    assert (found["epochs"], found["workers"]) == (1, 2)
    assert [row["case"] for row in found["rows"]] == ["one process", "in turns"]
    for row in found["rows"]:
        # Ten steps, of ten classes.
        assert 0.2 < row["accuracy"] < 1 and 0 < row["loss"] < 2.4 and row["spread"] == 0
        assert re.search(rf"{row['case']} +{row['accuracy']:.4f} ", finished.stdout)


@pytest.mark.long(covered_by="parallel/local_updates/test_local_updates.py")
@pytest.mark.timeout(120 * PATIENCE)
def test_local_updates_counts_bytes_of_rules(tmp_path):
    file = tmp_path / "figures" / "local_updates.json"
    finished = run(
        *(sys.executable, "benchmarks/local_updates.py", "--epochs", "1", "--seeds", "1"),
        *("--limit", "1024", "--data", "fashion", "--links", "--json", str(file)),
        *("--rows", "in step", "ModelAveraging, H = 4", "EASGD, H = 16"),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (data,) = json.loads(file.read_text())["data"]
    assert (data["data"], data["steps"]) == ("fashion", 8)
    in_step, averaged, elastic = data["rows"]
    # Of four workers each sends 2 x 3/4 of 101,770 values; they are averaged twice in eight steps.
    whole = 1.5 * 4 * (784 * 128 + 128 + 128 * 10 + 10)
    assert in_step["bytes_per_step"] == pytest.approx(whole, rel=0.01)
    assert averaged["bytes_per_step"] == pytest.approx(whole / 4, rel=0.01)
    assert elastic["bytes_per_step"] == pytest.approx(whole / 8, rel=0.01)
    for row in data["rows"]:
        assert 0.1 < row["accuracy"] < 1 and row["seeds"] == 1
        line = rf"{row['name']} +{row['bytes_per_step']:,.0f} +{row['accuracy']:.4f} "
        assert re.search(line, finished.stdout), finished.stdout


@pytest.mark.long(covered_by="single/elastic/test_elastic_records.py")
@pytest.mark.timeout(120 * PATIENCE)
def test_elastic_records_measures_each_kind():
    finished = run(
        *(sys.executable, "benchmarks/elastic_records.py", "--megabytes", "5", "--records", "2")
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    title, _, *lines = finished.stdout.splitlines()
    assert title == "5 MB of weights, 15 MB of variables, 2 records"
    kinds = ["in memory", "in the file", "nothing has changed", "read by a newcomer"]
    for line, kind in zip(lines, kinds, strict=True):
        assert re.match(rf"{kind} +[0-9.]+ +[0-9.]+", line), line


@pytest.mark.timeout(60)
def test_servers_of_tables_that_have_ended_or_do_not_answer_are_named(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from baselines.table_servers import connected

    from tfdist.launch.ports import free_ports

    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(subprocess.Popen(["sleep", "1000"])) for _ in range(2)]
        for process in silent:
            stack.callback(process.kill)
        with pytest.raises(TimeoutError, match="expected 2 servers .* within 0.1 s, .* of 0"):
            connected(addresses, silent, 0.1)
        silent[1].terminate()
        silent[1].wait(10)
        with pytest.raises(RuntimeError, match=f"{addresses[1]} has ended with -15"):
            connected(addresses, silent)


@pytest.mark.long(covered_by="parallel/embedding/test_served_training.py")
@pytest.mark.timeout(120 * PATIENCE)
def test_served_training_measures_the_age_of_rows(tmp_path):
    file = tmp_path / "figures" / "served_training.json"
    finished = run(
        *(sys.executable, "benchmarks/served_training.py", "--rows", "1000", "--batch", "64"),
        *("--every", "0.5", "--seconds", "5", "--folder", str(tmp_path), "--json", str(file)),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(file.read_text())
    assert found["failed"] == 0
    assert 0 < found["age"]["median"] <= found["age"]["99 %"] <= found["age"]["longest"]
    assert found["steps"]["alone"] > 0 and found["steps"]["followed"] > 0
    assert f"age      median {found['age']['median']:.2f} s" in finished.stdout
    # Nothing of the job is left.
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]
