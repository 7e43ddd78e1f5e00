"""Examples and the documentation's programs, started as the documentation says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from support.example_runs import ROOT, alone, documented_command, tfdist_run, typed

pytestmark = pytest.mark.timeout(180)


def test_fashion_mnist_prints_once_from_the_chief():
    lines = tfdist_run(ROOT / "keras_examples/fashion_mnist.py", "--epochs", "2", "--limit", "6000")
    for text in ("Epoch 1/2", "Epoch 2/2", "test accuracy", "images/s in all", "communication:"):
        assert [line.split("]")[0] for line in lines if text in line] == ["[worker 0"], text
    accuracy = next(line for line in lines if "test accuracy" in line)
    assert float(re.search(r"accuracy: ([\d.]+)", accuracy)[1]) > 0.7
    share = next(line for line in lines if "communication:" in line)
    assert 0 < float(re.search(r"([\d.]+)%", share)[1]) < 100


@pytest.mark.long(
    covered_by=(
        "test_fashion_mnist_prints_once_from_the_chief, parallel/collectives/test_compression.py"
    )
)
def test_fashion_mnist_sends_less_when_it_compresses():
    sent = {}
    for method in ("bf16", "topk"):
        lines = tfdist_run(
            ROOT / "keras_examples/fashion_mnist.py",
            *("--epochs", "1", "--limit", "1280", "--compression", method),
        )
        line = next(line for line in lines if "bytes sent a step" in line)
        sent[method] = int(re.search(r"step: ([\d,]+)", line)[1].replace(",", ""))
    assert 0.5 <= sent["bf16"] / (4 * 422_154) < 0.51
    assert 0.02 <= sent["topk"] / (4 * 422_154) < 0.03


@pytest.mark.long(covered_by="parallel/local_updates/test_local_updates.py")
def test_local_updates_send_less():
    sent = {}
    for rule in ("none", "diloco"):
        lines = tfdist_run(
            ROOT / "keras_examples/local_updates.py",
            *("--rule", rule, "--sync-every", "8", "--epochs", "1", "--limit", "6400"),
        )
        (line,) = (line for line in lines if "bytes sent a step" in line)
        sent[rule] = int(line.rpartition(" ")[2].replace(",", ""))
        (line,) = (line for line in lines if "test accuracy" in line)
        assert float(re.search(r"accuracy: ([\d.]+)", line)[1]) > 0.7
    # Fifty steps are six rounds and a short one; the first step is not counted.
    assert sent["diloco"] / sent["none"] == pytest.approx(7 / 49, rel=0.05)


@pytest.mark.long(covered_by="test_fashion_mnist_prints_once_from_the_chief")
def test_multi_worker_with_keras_saves_and_reads_back(tmp_path):
    lines = tfdist_run(
        ROOT / "keras_examples/multi_worker_with_keras.py",
        *("--output", str(tmp_path), "--epochs", "1", "--steps-per-epoch", "10"),
    )
    saved = [line for line in lines if "saved" in line and "read back" in line]
    assert len(saved) == 1 and saved[0].startswith("[worker 0]")
    assert (tmp_path / "model.keras").stat().st_size > 10_000


@pytest.mark.long(covered_by="parallel/keras/test_resume_after_kills.py")
def test_multi_worker_with_keras_goes_on_after_it_was_killed(tmp_path):
    options = ["--epochs", "2", "--steps-per-epoch", "8", "--backup-every", "3"]
    script, sums = ROOT / "keras_examples/multi_worker_with_keras.py", []
    for name, kill in (("whole", []), ("killed", ["--kill-after", "11"])):
        lines = tfdist_run(
            script,
            *("--output", str(tmp_path / name), *options, *kill),
            tasks="--workers 2 --restarts 1",
        )
        (last,) = (line for line in lines if "the weights' sum is" in line)
        assert last.startswith("[worker 0] after 16 steps")
        sums.append(float(last.rpartition(" ")[2]))
    assert (tmp_path / "killed" / "killed").exists()
    assert sums[0] == pytest.approx(sums[1], abs=0.01)


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_faults.py")
def test_elastic_ends_with_the_weights_of_one_process(tmp_path):
    command = documented_command("keras_examples/elastic.py")
    command[command.index("--output") + 1] = str(tmp_path / "killed")
    lines = typed(command)
    assert sorted(path.name for path in (tmp_path / "killed").glob("killed-*")) == [
        "killed-images-20",
        "killed-images-45",
    ]
    # Shown once, by the rank 0 of that time.
    assert len([line for line in lines if "Epoch 2/4" in line]) == 1
    (last,) = (line for line in lines if "the weights' sum is" in line)
    whole = alone(Path(command[command.index("1:3:3") + 1]), "--output", str(tmp_path / "one"))
    assert last.partition("] ")[2] == whole.splitlines()[-1]
    assert {path.name for path in (tmp_path / "killed").glob("epoch-*")} == {
        f"epoch-{epoch:02d}.keras" for epoch in range(1, 5)
    }


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_scripts.py")
def test_an_elastic_script_ends_with_the_results_of_one_process(tmp_path):
    command = documented_command("keras_examples/elastic_script.py")
    command[command.index("--output") + 1] = str(tmp_path / "killed")
    lines = typed(command)
    marks = sorted(path.name for path in (tmp_path / "killed").glob("killed-*"))
    assert marks == ["killed-classifier-12", "killed-encoder-10"]
    whole = alone(Path(command[command.index("1:3:3") + 1]), "--output", str(tmp_path / "one"))

    def results(text):
        return [
            line.partition("] ")[2] or line for line in text if re.search("labelled|sum is", line)
        ]

    assert results(lines) == results(whole.splitlines()) != []
    for name in ("encoder", "classifier", "again"):
        one, other = (
            np.genfromtxt(tmp_path / of / f"{name}.csv", delimiter=",", skip_header=1)
            for of in ("one", "killed")
        )
        assert len(one) == 12
        np.testing.assert_allclose(other, one, rtol=1e-9)


@pytest.mark.long("docs/*", covered_by="the other cases")
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guides/multi_worker.md",
        "docs/guides/compression.md",
        "docs/guides/local_updates.md",
        "docs/guides/elastic.md",
        "docs/guides/resume.md",
        "docs/guides/input.md",
    ],
)
def test_the_first_program_of_a_page_runs_on_two_workers(tmp_path, page):
    program = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1]
    script = tmp_path / "train.py"
    script.write_text(program)
    lines = tfdist_run(script)
    assert any("loss" in line for line in lines)


@pytest.mark.long(covered_by="parallel/keras/test_several_devices.py")
def test_the_program_for_several_devices_runs_on_two_workers(tmp_path):
    page = (ROOT / "docs/guides/mirrored.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (program,) = [p for p in programs if "MultiWorkerMirroredStrategy()" in p]
    script = tmp_path / "train.py"
    script.write_text(program)
    lines = tfdist_run(script)
    assert [line for line in lines if "replicas" in line] == ["[worker 0] 4 replicas"]
    assert any("loss" in line for line in lines)


@pytest.mark.long(covered_by="parallel/ps/test_ps_sync.py, parallel/ps/test_ps_faults.py")
@pytest.mark.parametrize(
    ("tasks", "arguments", "expected"),
    [
        ("--workers 2 --ps 1", [], "mode async: 2 workers, 1 ps; 23 steps of 128"),
        ("--workers 3 --ps 2", [], "mode async: 3 workers, 2 ps; 15 steps of 128"),
        ("--workers 2 --ps 1", ["--mode", "sync"], "mode sync: 2 workers, 1 ps; 46 steps of 128"),
    ],
    ids=["two", "three", "sync"],
)
def test_parameter_server(tmp_path, tasks, arguments, expected):
    options = ["--limit", "6000", "--epochs", "3", "--checkpoint-dir", str(tmp_path)]
    script = ROOT / "keras_examples/parameter_server.py"
    lines = tfdist_run(script, *options, *arguments, tasks=tasks)
    for text in (expected, "Epoch 3/3", "test accuracy", "pushes of this worker"):
        assert [line.split("]")[0] for line in lines if text in line] == ["[chief"], text
    accuracy = next(line for line in lines if "test accuracy" in line)
    assert float(re.search(r"accuracy: ([\d.]+)", accuracy)[1]) > 0.7
    servers = int(tasks[-1])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert len(manifest["servers"]) == servers
    assert all(Path(part["file"]).stat().st_size == part["bytes"] for part in manifest["servers"])


@pytest.mark.long(covered_by="parallel/ps/test_ps_sync.py")
def test_parameter_server_alone():
    script = ROOT / "keras_examples/parameter_server.py"
    printed = alone(script, "--limit", "2000", "--epochs", "1")
    assert "mode async: 1 worker, 0 ps; 15 steps of 128" in printed


def printed_once(lines: list[str], pattern: str, task: str = "chief") -> float:
    """The number in the one line that matches, which is this task's."""
    found = [(line, match) for line in lines if (match := re.search(pattern, line))]
    assert len(found) == 1 and found[0][0].startswith(f"[{task}]"), lines
    return float(found[0][1][1])


@pytest.mark.long(covered_by="parallel/embedding/test_embedding_parity.py")
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_movielens_beside_plain_keras(mode):
    script = ROOT / "keras_examples/movielens.py"
    options = ["--limit", "20000", "--epochs", "6", "--learning-rate", "0.5"]
    size = 256 if mode == "async" else 128
    own = ["--mode", mode, "--batch-size", str(size)]
    lines = tfdist_run(script, *options, *own, tasks="--workers 2 --ps 2")
    steps = rf"tfdist, 2 workers, 2 ps: (\d+) steps of {size}"
    assert printed_once(lines, steps) == 20000 // (2 * size)
    remote = printed_once(lines, r"test AUC: ([\d.]+) \(tfdist, 2 workers, 2 ps\)")
    assert remote > 0.7
    if mode == "async":
        return  # how stale gradients are, and so what they lead to, depends on the machine
    plain = re.search(r"test AUC: ([\d.]+) \(plain Keras\)", alone(script, "--plain", *options))
    assert float(plain[1]) > 0.7
    # Only the first values of rows are others.
    assert remote == pytest.approx(float(plain[1]), abs=0.015)


@pytest.mark.long(
    covered_by=(
        "parallel/embedding/test_embedding_parity.py, single/examples/test_movielens_data.py"
    )
)
def test_movielens_alone_and_without_data(tmp_path):
    script = ROOT / "keras_examples/movielens.py"
    printed = alone(script, "--limit", "2000", "--epochs", "1")
    assert re.search(r"test AUC: [\d.]+ \(tfdist, 1 worker, 0 ps\)", printed)
    with pytest.raises(AssertionError, match="expected u.data or ml-100k.inter there"):
        alone(script, "--data", str(tmp_path))


@pytest.mark.long(
    covered_by="parallel/embedding/test_embedding_parity.py, single/examples/test_criteo.py"
)
def test_criteo_synthetic():
    lines = tfdist_run(
        ROOT / "keras_examples/criteo_synthetic.py",
        *("--steps", "60", "--batch-size", "512", "--test-batches", "10"),
        tasks="--workers 2 --ps 2",
    )
    announced = r"SYNTHETIC clicks, 2 workers, 2 ps: (\d+) steps of 512 examples on each worker"
    assert printed_once(lines, announced) == 60
    assert printed_once(lines, r"examples/s in all: (\d+)") > 0
    ids = printed_once(lines, r"this worker's rows: (\d+) ids")
    assert 60 * 512 * 26 == ids > printed_once(lines, r"(\d+) rows pulled") > 0
    assert printed_once(lines, r"([\d.]+) MB pushed") > 1
    learnt = printed_once(lines, r"AUC on held-out synthetic clicks: ([\d.]+)")
    possible = printed_once(lines, r"best possible: ([\d.]+)")
    assert 0.55 < learnt < possible < 0.9


@pytest.mark.long(
    covered_by="parallel/embedding/test_served_training.py, single/serving/test_served_commands.py"
)
def test_served_tables(tmp_path):
    example = "keras_examples/served_tables.py"
    command = re.search(rf"^    python {example} (.*)$", (ROOT / example).read_text(), re.MULTILINE)
    words = command[1].replace("/tmp/served", str(tmp_path / "served")).split()
    said = alone(ROOT / example, *words, "--seconds", "6")
    requests, failed = map(int, re.search(r"(\d+) requests, (\d+) failed", said).groups())
    assert requests > 20
    assert failed == 0
    first, last = map(int, re.search(r"from snapshot (\d+) to (\d+)", said).groups())
    assert first < last
    assert float(re.search(r"its answers moved by ([\d.]+)", said)[1]) > 0


@pytest.mark.long(
    covered_by="parallel/embedding/test_worker_tables.py, single/examples/test_criteo.py"
)
def test_worker_tables():
    lines = tfdist_run(
        ROOT / "keras_examples/worker_tables.py",
        *("--steps", "60", "--batch-size", "512", "--test-batches", "10"),
        tasks="--workers 2",
    )
    announced = r"SYNTHETIC clicks, 2 workers without ps tasks: (\d+) steps of 512 examples"
    chief = "worker 0"
    assert printed_once(lines, announced, chief) == 60
    assert printed_once(lines, r"a share of 50% on each worker: (\d+)", chief) > 1000
    learnt = printed_once(lines, r"AUC on held-out synthetic clicks: ([\d.]+)", chief)
    possible = printed_once(lines, r"best possible: ([\d.]+)", chief)
    assert 0.55 < learnt < possible < 0.9


@pytest.mark.long(covered_by="parallel/ps/test_ps_sync.py")
def test_the_programs_for_parameter_servers_run(tmp_path):
    page = (ROOT / "docs/guides/parameter_server.md").read_text()
    script = tmp_path / "train.py"
    first, second, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script.write_text(first + second)
    lines = tfdist_run(script, tasks="--workers 2 --ps 1")
    assert any(line.startswith("[chief]") and "- loss" in line for line in lines)
    of_all = [line for line in lines if "loss of all rows" in line]
    assert len(of_all) == 2 and len({line.partition("]")[2] for line in of_all}) == 1, of_all


@pytest.mark.long(
    covered_by=(
        "parallel/horovod/test_distributed_optimizer.py, parallel/horovod/test_distributed_tape.py"
    )
)
@pytest.mark.parametrize("options", [[], ["--loop", "--passes", "2"]], ids=["fit", "loop"])
def test_horovod_style(options):
    command = documented_command("keras_examples/horovod_style.py")
    lines = typed([*command, "--epochs", "2", "--limit", "6000", *options])
    for text in ("2 workers, 46 steps of 64 images each", "Epoch 2/2", "test accuracy"):
        assert [line.split("]")[0] for line in lines if text in line] == ["[worker 0"], text
    accuracy = next(line for line in lines if "test accuracy" in line)
    assert float(re.search(r"accuracy: ([\d.]+)", accuracy)[1]) > 0.7


@pytest.mark.long(
    covered_by="parallel/horovod/test_distributed_optimizer.py, parallel/elastic/test_run.py"
)
def test_the_programs_of_the_porting_guide_run_on_two_workers(tmp_path, monkeypatch):
    page = (ROOT / "docs/start/porting.md").read_text()
    before = re.findall(r'^```python title="before"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    after = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(before) == 3 and len(after) == 5
    # One process runs all of them: each stands for itself.
    script = tmp_path / "train.py"
    script.write_text("\n\n".join(after))
    monkeypatch.chdir(tmp_path)
    lines = tfdist_run(script)
    (mean,) = [line for line in lines if "mean loss" in line]
    assert mean.startswith("[worker 0]") and float(mean.split()[-1]) < 0.1
    assert len([line for line in lines if "Epoch 3/3" in line]) == 2
    assert (tmp_path / "model.keras").exists()
    assert len([line for line in lines if "alike: own False shared True" in line]) == 2
    # The launcher's job is not elastic.
    assert len([line for line in lines if "elastic: 50 batches, error 0.00" in line]) == 2
    # Names are all that a Horovod script changes.
    for old, new in zip(before[:2], after[:2], strict=True):
        renamed = re.sub(r"import horovod.*\n", "", old).replace("hvd.allreduce(loss)", "MEAN")
        new = new.replace('tfdist.ops.all_reduce(loss, reduce_op="mean")', "MEAN")
        assert renamed.replace("hvd.", "tfdist.") == new.replace("import tfdist\n", "")
