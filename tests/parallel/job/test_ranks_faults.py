"""The multi-process harness itself: ranks that are killed, stopped, crash or cannot be started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.processes.ranks import start_ranks


def count_steps(ctx):
    for step in range(1_000_000):
        ctx.report("step", step)
        if ctx.wait_for("continue") == "end":
            return step
    return None


def test_a_rank_can_be_killed_at_a_step():
    with start_ranks(count_steps, 3) as ranks:
        for step in range(3):
            for rank in range(3):
                assert ranks.wait_for(rank, "step", step) == step
                if (rank, step) != (1, 2):
                    ranks.send(rank, "continue", "end" if step == 2 else "")
        killed_at = ranks[1].kill()
        outcomes = ranks.join(timeout=30)
    assert [outcome.result for outcome in outcomes] == [2, None, 2]
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert outcomes[1].signal == signal.SIGKILL
    assert outcomes[1].exit_code is None
    assert 0 <= outcomes[1].finished_at - killed_at < 5
    assert "rank 1 of 3: ended by SIGKILL" in outcomes[1].describe()


def meet_and_count(ctx):
    ctx.report("pid", os.getpid())
    if ctx.wait_for("continue") == "wait":
        threading.Event().wait()
    ctx.barrier("met")
    print("met by", os.getpid(), flush=True)
    return os.getpid()


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_faults.py")
def test_a_rank_that_was_killed_can_be_started_again():
    with start_ranks(meet_and_count, 2) as ranks:
        first = ranks.wait_for(1, "pid")
        for rank, word in ((0, ""), (1, "wait")):
            ranks.send(rank, "continue", word)
        ranks[1].kill()
        ranks.restart(1)
        second = ranks.wait_for(1, "pid")
        assert second == ranks[1].pid != first
        ranks.send(1, "continue")
        outcomes = ranks.join(timeout=30)
        assert not Path(f"/proc/{first}").exists()
    assert [outcome.ok for outcome in outcomes] == [True, True]
    assert outcomes[1].result == second
    assert outcomes[1].output == f"met by {second}"


def test_a_rank_that_runs_is_not_started_again(monkeypatch):
    monkeypatch.setattr("support.processes.rank_group._REAP_TIMEOUT", 0.2)
    with start_ranks(meet_and_count, 1) as ranks:
        ranks.wait_for(0, "pid")
        with pytest.raises(AssertionError, match="rank 0 has to end before it can be started"):
            ranks.restart(0)


def test_a_stopped_rank_says_nothing_until_it_is_resumed():
    with start_ranks(count_steps, 2) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "step", 0)
        ranks[1].stop()
        for rank in range(2):
            ranks.send(rank, "continue", "end")
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


def hang(ctx):
    threading.Event().wait()


def test_waiting_for_a_report_has_a_deadline_and_shows_the_stacks():
    started = time.monotonic()
    with start_ranks(hang, 2) as ranks:
        with pytest.raises(AssertionError, match="rank 1 did not report 'step' within 1 s") as e:
            ranks.wait_for(1, "step", timeout=1)
    assert "in hang" in str(e.value)
    assert time.monotonic() - started < 100


def crash(ctx):
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_in_native_code_shows_where_python_and_the_native_code_were():
    with start_ranks(crash, 2) as ranks:
        outcomes = ranks.join(timeout=30)
    assert outcomes[1].signal == signal.SIGABRT  # TensorFlow's handler ends with it
    assert "Segmentation fault" in outcomes[1].traceback
    assert "in crash" in outcomes[1].traceback
    assert "Begin stack trace" in outcomes[1].output and "kill" in outcomes[1].output


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
from support.processes import ranks
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


@pytest.mark.long(covered_by="test_a_stopped_rank_is_ended_on_leaving")
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
    ended = select.poll()  # select.select knows no descriptor above 1023
    for rank in ranks:
        ended.register(rank, select.POLLIN)
        assert ended.poll(10_000) == [(rank, select.POLLIN)]
        ended.unregister(rank)
        os.close(rank)
