"""The multi-process test harness: its reports when ranks pass, fail, hang and die."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes.ranks import on_ranks, start_ranks
from tfdist.launch.ports import ephemeral_range


@dataclass(frozen=True)
class Point:
    x: int


@pytest.fixture
def base() -> int:
    return 100


def sums_are_right(results: list[int]) -> None:
    assert results == [100 + 7 * rank for rank in range(len(results))]


@on_ranks(1, 2, 4, check=sums_are_right)
def test_every_rank_runs_the_body_with_its_own_number(ctx, base):
    return base + 7 * ctx.rank


@pytest.mark.parametrize("point", [Point(3), Point(4)])
@on_ranks(2)
def test_parameters_travel_by_pickle_with_classes_of_the_test_module(ctx, point, tmp_path):
    assert isinstance(point, Point)
    (ctx.tmp_path / f"{point.x}-{ctx.rank}").touch()
    ctx.barrier("written")
    assert tmp_path == ctx.tmp_path
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{point.x}-{r}" for r in range(2)]


@on_ranks(3)
def test_tf_config_lists_free_loopback_ports_below_the_ephemeral_range(ctx):
    config = json.loads(os.environ["TF_CONFIG"])
    assert config["cluster"] == {"worker": list(ctx.addresses)}
    assert config["task"] == {"type": "worker", "index": ctx.rank}
    ports = [int(address.removeprefix("127.0.0.1:")) for address in ctx.addresses]
    assert len(set(ports)) == 3
    first, last = ephemeral_range()
    assert not any(first <= port <= last for port in ports)


@on_ranks(3, roles=("chief", "worker", "ps"), env={"COLOUR": "blue"})
def test_roles_and_environment_can_be_chosen(ctx):
    config = json.loads(os.environ["TF_CONFIG"])
    assert config["cluster"] == {
        role: [address]
        for role, address in zip(("chief", "worker", "ps"), ctx.addresses, strict=True)
    }
    assert config["task"] == {"type": ("chief", "worker", "ps")[ctx.rank], "index": 0}
    assert os.environ["COLOUR"] == "blue"


@on_ranks(2)
def test_tensorflow_is_preloaded_and_has_small_pools(ctx):
    assert "tensorflow" in sys.modules
    assert "keras" in sys.modules
    assert threading.active_count() == 1
    tf = sys.modules["tensorflow"]
    assert tf.config.threading.get_inter_op_parallelism_threads() == 2
    assert tf.config.threading.get_intra_op_parallelism_threads() == 2
    assert int(tf.reduce_sum(tf.range(ctx.rank + 3))) == sum(range(ctx.rank + 3))


@on_ranks(4)
def test_a_barrier_can_be_used_again(ctx):
    for turn in range(3):
        (ctx.tmp_path / f"{turn}-{ctx.rank}").touch()
        ctx.barrier("turn")
        assert len(list(ctx.tmp_path.glob(f"{turn}-*"))) == 4


def environment_of(ctx, name):
    return os.environ.get(name)


def test_ranks_have_the_present_environment(monkeypatch):
    for value in ("first", "second"):
        monkeypatch.setenv("RANKS_PROBE", value)
        with start_ranks(environment_of, 1, args=("RANKS_PROBE",)) as ranks:
            assert ranks.join(timeout=30)[0].result == value


def append_line(path):
    with open(path, "a") as file:
        file.write("left\n")


def leave_with_exit_handler(ctx):
    import atexit

    atexit.register(append_line, ctx.tmp_path / "left")


def test_handlers_registered_by_the_body_run_at_exit(tmp_path):
    with start_ranks(leave_with_exit_handler, 2, tmp_path=tmp_path) as ranks:
        assert all(outcome.ok for outcome in ranks.join(timeout=30))
    assert (tmp_path / "left").read_text() == "left\nleft\n"


def second_to_last_fails(ctx):
    if ctx.rank == ctx.size - 2:
        print(f"about to fail on {ctx.rank}", flush=True)
        os.write(2, b"written by native code\n")
        assert ctx.rank * 10 == 21
    ctx.wait_for("never", timeout=0.5)


failing = on_ranks(4)(second_to_last_fails)


def test_a_failing_rank_is_shown_first_with_traceback_and_output(tmp_path):
    with pytest.raises(pytest.fail.Exception) as caught:
        failing(rank_count=4, tmp_path=tmp_path)
    text = str(caught.value)
    assert text.startswith("rank 2 of 4: AssertionError: ")
    assert "assert (2 * 10) == 21" in text
    assert "in second_to_last_fails" in text
    # The others fail later, and stand later.
    first = text[: min(text.index(f"rank {rank} of 4: TimeoutError") for rank in (0, 1, 3))]
    assert "about to fail on 2" in first
    assert "written by native code" in first
    assert "rank_process.py" not in first


def first_fails_others_wait(ctx):
    if ctx.rank == 0:
        raise ValueError("bad luck")
    threading.Event().wait()


def test_the_first_failure_ends_ranks_that_would_wait_for_ever(tmp_path):
    with start_ranks(first_fails_others_wait, 3, tmp_path=tmp_path) as ranks:
        outcomes = ranks.join(timeout=60, grace=0.2)
    assert [outcome.exception for outcome in outcomes] == ["ValueError", None, None]
    assert outcomes[0].message == "bad luck"
    for outcome in outcomes[1:]:
        assert outcome.hung == "still running 0.2 s after the first failure"
        assert outcome.signal == signal.SIGABRT
        assert "in first_fails_others_wait" in outcome.traceback


def hang_in_a_function_of_its_own(ctx):
    ctx.report("hanging")
    threading.Event().wait()


def hang_unless_zero(ctx):
    if ctx.rank:
        hang_in_a_function_of_its_own(ctx)


def test_a_hang_shows_the_stacks_of_every_hanging_rank():
    with start_ranks(hang_unless_zero, 3) as ranks:
        for rank in (1, 2):
            ranks.wait_for(rank, "hanging")
        with pytest.raises(AssertionError) as caught:
            ranks.join(timeout=0.5)
        pids = [ranks[rank].pid for rank in range(3)]
        text = str(caught.value)
    assert text.startswith("2 of 3 ranks hang; their stacks:\n")
    for rank in (1, 2):
        assert f"rank {rank} of 3: still running after 0.5 s" in text
    assert text.count("in hang_in_a_function_of_its_own") == 2
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


hanging = on_ranks(2, timeout=1.0)(hang_unless_zero)


def test_a_hang_fails_the_test_that_hangs(tmp_path):
    with pytest.raises(AssertionError, match="1 of 2 ranks hang"):
        hanging(rank_count=2, tmp_path=tmp_path)
