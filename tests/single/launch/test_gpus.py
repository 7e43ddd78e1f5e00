"""`tfdist run --gpus-per-worker`: CUDA_VISIBLE_DEVICES of each task."""

from __future__ import annotations

import pytest

from support.launching import Launcher
from tfdist.launch.gpus import GpuShares, variables

pytestmark = pytest.mark.timeout(60)
NAME = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("listed", "gpus", "expected"),
    [
        (None, [2, 3], "2,3"),
        ("3,5,6,7", [2, 3], "6,7"),
        ("GPU-8932f937, MIG-c6d4f1ef", [1], "MIG-c6d4f1ef"),
        ("3,5", [], ""),
        (None, [], ""),
    ],
)
def test_the_list_of_a_host_is_divided(listed, gpus, expected):
    environment = {} if listed is None else {NAME: listed}
    assert variables(environment, gpus) == {NAME: expected}


def test_without_the_option_nothing_is_set():
    assert variables({NAME: "0,1"}, None) == {}
    assert GpuShares(None, [True]).of(0, []) is None


@pytest.mark.parametrize(("listed", "count"), [("0", 1), ("", 0), ("0,-1,2", 1)])
def test_a_list_that_is_too_short(listed, count):
    with pytest.raises(OSError, match=rf"expected 2 GPUs or more .*, received {count}: '{listed}'"):
        variables({NAME: listed}, [1])


def test_a_task_that_moves_gets_gpus_that_nobody_has():
    shares = GpuShares(2, [True] * 4)
    assert shares.of(0, [1]) == [0, 1]
    assert shares.of(1, [0]) == [2, 3]
    assert shares.of(2, [1]) == [0, 1]  # beside task 1, after task 0 has left the host
    assert shares.of(2, [1]) == [0, 1]  # started again
    assert shares.of(3, [1, 2]) == [4, 5]


SCRIPT = f"""
say(repr(os.environ["{NAME}"]))
if "ps" in me: wait_for_ever()
"""


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_tasks_of_all_kinds(launch, monkeypatch):
    monkeypatch.setenv(NAME, "4,5,6,7,8,9")
    options = "--workers 2 --ps 1 --evaluator --gpus-per-worker 2".split()
    code, out, err = launch(SCRIPT, *options).finish()
    assert code == 0, err
    expected = ["[chief] '4,5'", "[evaluator 0] '8,9'", "[ps 0] ''", "[worker 0] '6,7'"]
    assert sorted(out) == expected


def test_a_machine_with_too_few(launch, monkeypatch):
    monkeypatch.setenv(NAME, "0")
    code, _, err = launch(SCRIPT, "--workers", "2", "--gpus-per-worker", "1").finish()
    assert code == 1
    assert "cannot start worker 1: " in err[-1] and "received 1: '0'" in err[-1]
