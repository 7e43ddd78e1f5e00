"""The multi-process harness itself: what it shows when ranks pass, fail, hang and die."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from ranks import on_ranks, start_ranks

from tfdist.ports import ephemeral_range


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
    assert "grpc" not in sys.modules
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


def count_steps(ctx):
    for step in range(1_000_000):
        ctx.report("step", step)
        if ctx.wait_for("go on") == "end":
            return step
    return None


def test_a_rank_can_be_killed_at_a_step():
    with start_ranks(count_steps, 3) as ranks:
        for step in range(3):
            for rank in range(3):
                assert ranks.wait_for(rank, "step", step) == step
                if (rank, step) != (1, 2):
                    ranks.send(rank, "go on", "end" if step == 2 else "")
        killed_at = ranks[1].kill()
        outcomes = ranks.join(timeout=30)
    assert [outcome.result for outcome in outcomes] == [2, None, 2]
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert outcomes[1].signal == signal.SIGKILL
    assert outcomes[1].exit_code is None
    assert 0 <= outcomes[1].finished_at - killed_at < 5
    assert "rank 1 of 3: ended by SIGKILL" in outcomes[1].describe()


def test_a_stopped_rank_says_nothing_until_it_is_resumed():
    with start_ranks(count_steps, 2) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "step", 0)
        ranks[1].stop()
        for rank in range(2):
            ranks.send(rank, "go on", "end")
        assert ranks.join(timeout=30, only=[0])[0].result == 0
        assert ranks[1].alive
        ranks[1].resume()
        assert ranks.join(timeout=30)[1].result == 0


def test_a_stopped_rank_is_ended_on_leaving():
    with start_ranks(count_steps, 2) as ranks:
        ranks.wait_for(1, "step", 0)
        ranks[1].stop()
        pids = [ranks[rank].pid for rank in range(2)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def exit_with(ctx, codes):
    if codes[ctx.rank] is not None:
        os._exit(codes[ctx.rank])


def test_an_exit_code_is_seen_and_waiting_for_that_rank_says_so():
    with start_ranks(exit_with, 3, args=((None, 7, None),)) as ranks:
        with pytest.raises(AssertionError, match="rank 1 ended before it reported 'step': 4"):
            ranks.wait_for(1, "step", 4)
        outcomes = ranks.join(timeout=30)
    assert [outcome.exit_code for outcome in outcomes] == [0, 7, 0]
    assert [outcome.ok for outcome in outcomes] == [True, False, True]


def test_waiting_for_a_report_has_a_deadline_and_shows_the_stacks():
    started = time.monotonic()
    with start_ranks(hang_in_a_function_of_its_own, 2) as ranks:
        with pytest.raises(AssertionError, match="rank 1 did not report 'step' within 1 s") as e:
            ranks.wait_for(1, "step", timeout=1)
    assert "in hang_in_a_function_of_its_own" in str(e.value)
    assert time.monotonic() - started < 20


def crash(ctx):
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_in_native_code_shows_where_python_was():
    with start_ranks(crash, 2) as ranks:
        outcomes = ranks.join(timeout=30)
    assert outcomes[1].signal == signal.SIGSEGV
    assert "in crash" in outcomes[1].traceback


def return_something_unpicklable(ctx):
    return lambda: None


def test_a_result_that_cannot_be_pickled_is_a_failure_not_a_hang():
    with start_ranks(return_something_unpicklable, 1) as ranks:
        (outcome,) = ranks.join(timeout=30)
    assert not outcome.ok
    assert "pickle" in outcome.message


def test_an_argument_that_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match="received 'codes' of type function"):
        with start_ranks(exit_with, 2, kwargs={"codes": lambda: None}):
            raise AssertionError("no rank should have been started")


def test_a_body_inside_a_function_is_refused():
    def body(ctx):
        return None

    with pytest.raises(TypeError, match="expected a top-level function"):
        with start_ranks(body, 2):
            raise AssertionError("no rank should have been started")


PARENT = """
import sys
sys.path[:0] = {path!r}
import ranks
# Nothing here needs TensorFlow.
ranks.PRELOAD = ("rank_process",)
from rank_parent_body import wait_for_ever
with ranks.start_ranks(wait_for_ever, 2) as group:
    for rank in range(2):
        group.wait_for(rank, "waiting")
    group[1].stop()
    print(group[0].pid, group[1].pid, flush=True)
    group.join(timeout=1000)
"""
BODY = """
import threading

def wait_for_ever(ctx):
    ctx.report("waiting")
    threading.Event().wait()
"""


def test_no_rank_outlives_a_parent_that_was_killed(tmp_path):
    (tmp_path / "rank_parent_body.py").write_text(BODY)
    text = PARENT.format(path=[str(tmp_path), *sys.path])
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    try:
        ranks = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(ranks) == 2
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    for rank in ranks:
        assert select.select([rank], [], [], 10)[0]
        os.close(rank)
