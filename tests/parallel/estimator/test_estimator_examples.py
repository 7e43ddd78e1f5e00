"""The Estimator examples, started as their headers say, for few steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from support.example_runs import ROOT, alone, documented_command, typed

MNIST = "estimator_examples/mnist_train_and_evaluate.py"
MOVIELENS = "estimator_examples/movielens_ps.py"
ADULT = "estimator_examples/wide_deep_adult.py"
pytestmark = pytest.mark.timeout(180)


def with_model_dir(command: list[str], folder: Path) -> list[str]:
    command = list(command)
    command[command.index("--model-dir") + 1] = str(folder)
    return command


def printed_by(task: str, lines: list[str]) -> list[str]:
    """The lines of a task; no other task printed anything but the chief."""
    assert all(line.startswith((f"[{task}] ", "[chief] ")) for line in lines), lines
    return [line.removeprefix(f"[{task}] ") for line in lines if line.startswith(f"[{task}] ")]


def results(lines: list[str]) -> list[dict[str, float]]:
    """The evaluations, in their order, and last what the exported model gave."""
    pairs = [re.findall(r"(step|accuracy(?: is)?|auc|loss) ([\d.]+)", line) for line in lines]
    return [{name.split()[0]: float(number) for name, number in p} for p in pairs if p]


def said_without_tfdist(exported: Path) -> str:
    """The outputs of a SavedModel for three images in a process of plain TensorFlow."""
    program = (
        "import tensorflow as tf\n"
        f"serve = tf.saved_model.load({str(exported)!r}).signatures['serving_default']\n"
        "said = serve(image=tf.zeros([3, 28, 28], tf.uint8))\n"
        "print({name: said[name].shape.as_list() for name in sorted(said)})\n"
    )
    command = [sys.executable, "-I", "-c", program]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


@pytest.mark.long(
    covered_by=(
        "parallel/estimator/test_estimator_jobs.py::test_all_reduce, "
        "parallel/estimator/test_estimator_faults.py"
    )
)
def test_mnist_by_workers_with_an_evaluator(tmp_path):
    command = with_model_dir(documented_command(MNIST), tmp_path)
    lines = typed([*command, "--steps", "80", "--batch-size", "32"])
    assert "[chief] 2 workers, 80 steps of 64 images, 32 on each worker" in lines
    *evaluations, read_back = results(printed_by("evaluator 0", lines))
    last = evaluations[-1]
    assert last["step"] == 80 and last["loss"] < 1.2 and last["accuracy"] > 0.6  # at first 2.3, 0.1
    assert read_back["accuracy"] == pytest.approx(last["accuracy"], abs=1e-3)
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-80")
    assert list((tmp_path / "eval").glob("events.*"))
    (exported,) = (tmp_path / "export/final").iterdir()
    assert said_without_tfdist(exported) == "{'class': [3], 'probabilities': [3, 10]}\n"


@pytest.mark.long(covered_by="parallel/estimator/test_estimator_resume.py")
def test_mnist_alone_goes_on_from_its_checkpoint(tmp_path):
    arguments = ["--model-dir", str(tmp_path), "--batch-size", "16"]
    first = alone(ROOT / MNIST, *arguments, "--steps", "20").splitlines()
    assert "1 worker, 20 steps of 16 images, 16 on each worker" in first
    assert results(first)[-2]["step"] == 20
    second, read_back = results(alone(ROOT / MNIST, *arguments, "--steps", "28").splitlines())
    assert second["step"] == 28
    assert read_back["accuracy"] == pytest.approx(second["accuracy"], abs=1e-3)
    # A second start would have saved at step 0 again, as the last but one.
    saved = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
    assert [int(path.rpartition("-")[2]) for path in saved] == [0, 20, 28]


def assert_learnt(evaluations: list[dict[str, float]]) -> None:
    # The constant answer "no" is right on 0.764.
    assert evaluations[-1]["accuracy"] > 0.8 and evaluations[-1]["auc"] > 0.85


@pytest.mark.long(
    covered_by=(
        "parallel/estimator/test_estimator_jobs.py::test_all_reduce, "
        "parallel/estimator/test_estimator_faults.py"
    )
)
def test_adult_by_workers_with_an_evaluator(tmp_path):
    command = with_model_dir(documented_command(ADULT), tmp_path)
    lines = typed([*command, "--steps", "100"])
    assert "[chief] MultiWorkerMirroredStrategy: 100 steps, 64 rows on each replica" in lines
    *evaluations, read_back = results(printed_by("evaluator 0", lines))
    assert evaluations[-1]["step"] == 100
    assert_learnt(evaluations)
    best = min(evaluations, key=lambda found: found["loss"])
    assert read_back["accuracy"] == pytest.approx(best["accuracy"], abs=1e-3)
    assert read_back["auc"] == pytest.approx(best["auc"], abs=2e-3)


@pytest.mark.long(
    covered_by="parallel/estimator/test_estimator_docs.py::test_embeddings_in_a_model_fn"
)
def test_adult_with_parameter_servers(tmp_path):
    command = with_model_dir(documented_command(ADULT), tmp_path)
    index = command.index("--evaluator")
    lines = typed([*command[:index], "--ps", "1", *command[index:], "--steps", "100"])
    assert "[chief] ParameterServerStrategy: 100 steps, 64 rows on each replica" in lines
    *evaluations, _ = results(printed_by("evaluator 0", lines))
    # Each worker may be in a step when the other makes the last.
    assert 100 <= evaluations[-1]["step"] <= 102
    assert_learnt(evaluations)


@pytest.mark.long(covered_by="test_adult_without_data")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param([], "no strategy", id="none"),
        pytest.param(["--strategy", "mirrored"], "MirroredStrategy", id="mirrored"),
        pytest.param(["--strategy", "central"], "CentralStorageStrategy", id="central"),
    ],
)
def test_adult_alone(tmp_path, arguments, name):
    arguments = [*arguments, "--model-dir", str(tmp_path), "--steps", "60"]
    lines = alone(ROOT / ADULT, *arguments).splitlines()
    assert f"{name}: 60 steps, 64 rows on each replica" in lines
    *evaluations, _ = results(lines)
    assert evaluations[-1]["step"] == 60
    assert_learnt(evaluations)


def test_adult_without_data(tmp_path):
    with pytest.raises(AssertionError, match="absent.whl: expected the Adult data there"):
        alone(ROOT / ADULT, "--model-dir", str(tmp_path), "--data", str(tmp_path / "absent.whl"))


@pytest.mark.long(
    covered_by=(
        "parallel/estimator/test_estimator_docs.py::test_embeddings_in_a_model_fn, "
        "parallel/estimator/test_estimator_faults.py"
    )
)
def test_movielens_by_workers_servers_and_an_evaluator(tmp_path):
    command = with_model_dir(documented_command(MOVIELENS), tmp_path)
    lines = printed_by("evaluator 0", typed([*command, "--steps", "200"]))
    assert lines[0] == "80000 ratings to learn from, 20000 to test"
    last = results(lines[:-1])[-1]
    # Workers that do not wait for each other may pass the last step, each by one.
    assert 200 <= last["step"] <= 201 and last["auc"] > 0.65
    chances = [float(p) for p in re.findall(r"0\.\d\d", lines[-1])]
    assert len(chances) == 3 and len(set(chances)) > 1
    assert list(tmp_path.glob(f"model.ckpt-{last['step']:.0f}.tables/of_user.npz"))
