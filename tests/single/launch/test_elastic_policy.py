"""Which workers of an elastic job are started, and when: without processes, at given times."""

from __future__ import annotations

import pytest

from support.drawings import drawn_transitions
from tfdist.errors import ClusterConfigError
from tfdist.launch.policies import elastic
from tfdist.launch.policies.decisions import EndDecision, TaskEnd, Verdict
from tfdist.launch.policies.elastic import (
    SLOT_TRANSITIONS,
    Backoff,
    Changes,
    ElasticPolicy,
    ScaleError,
    SlotState,
    WorkerRange,
)

FREE, RUNNING, LEAVING = SlotState.FREE, SlotState.RUNNING, SlotState.LEAVING
RETURNING, WAITING = SlotState.RETURNING, SlotState.WAITING
FINISHED, OUT = SlotState.FINISHED, SlotState.OUT


def begun(text, **options):
    policy = ElasticPolicy(WorkerRange.from_text(text), **options)
    policy.begin()
    return policy


def states(policy):
    return [policy.state(slot) for slot in range(policy.workers.maximum)]


def restart(policy, slot, life):
    """Lets a worker fail after `life` seconds and start again; returns its back-off."""
    decision = policy.failed(slot, life)
    assert decision.verdict is Verdict.RESTART and not decision.reason
    policy.restarted(slot)
    return decision.wait


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2:8", (2, 8, 2)), ("2:8:4", (2, 8, 4)), ("1:1:1", (1, 1, 1)), ("03:4", (3, 4, 3))],
)
def test_a_range_is_read(text, expected):
    workers = WorkerRange.from_text(text)
    assert (workers.minimum, workers.maximum, workers.start) == expected
    assert str(workers) == ":".join(map(str, expected))
    assert WorkerRange.from_text(str(workers)) == workers


@pytest.mark.parametrize("text", ["", "2", "2:", ":2", "2:8:4:5", "-1:2", "2:x", "1.5:2", "٢:٨"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ClusterConfigError, match='^--workers: expected "min:max" or "min:max:st'):
        WorkerRange.from_text(text)


@pytest.mark.parametrize("text", ["0:2", "3:2", "2:8:1", "2:8:9", "0:0", "2:8:0"])
def test_a_range_that_contradicts_itself_is_refused(text):
    with pytest.raises(ClusterConfigError, match=f"^--workers {text}: expected "):
        WorkerRange.from_text(text)
    with pytest.raises(ClusterConfigError):
        WorkerRange(*map(int, text.split(":")))


def test_the_transitions_of_a_slot_are_the_drawing():
    drawn = drawn_transitions(elastic.__doc__)
    table = {state.name: {to.name for to in follow} for state, follow in SLOT_TRANSITIONS.items()}
    assert table == {state.name: drawn.get(state.name, set()) for state in SlotState}
    assert set(drawn) <= {state.name for state in SlotState}


def test_a_slot_refuses_another_transition():
    policy = begun("1:2:2")
    policy.end(0)
    with pytest.raises(RuntimeError, match="slot 0 that is FINISHED expected one of .. to follow"):
        policy.hold(0)
    assert states(policy) == [FINISHED, RUNNING]


def test_the_first_slots_are_started():
    policy = ElasticPolicy(WorkerRange(2, 5, 3))
    assert policy.is_done and states(policy) == [FREE] * 5
    assert policy.begin() == policy.working == [0, 1, 2]
    assert states(policy) == [RUNNING] * 3 + [FREE] * 2
    assert not policy.is_done and not policy.finished and not policy.awaits_start


def test_the_backoff_doubles_up_to_a_limit():
    policy = begun("1:2", max_restarts=100, backoff=Backoff(attempts=100))
    waits = [restart(policy, 0, life=59.9) for _ in range(8)]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert Backoff().seconds(10**9) == 30


def test_a_long_life_resets_the_backoff():
    policy = begun("1:2:2", max_restarts=100)
    assert [restart(policy, 1, life) for life in (5, 5, 60, 5, 5, 1000)] == [1, 2, 1, 2, 4, 1]


def test_slots_have_their_own_backoff():
    policy = begun("1:3:3", max_restarts=100)
    assert [restart(policy, slot, 1.0) for slot in (0, 1, 0, 2, 1)] == [1, 1, 2, 1, 2]


def test_a_slot_that_fails_soon_three_times_is_left_out():
    policy = begun("1:2:2")
    restart(policy, 1, 3.0)
    restart(policy, 1, 3.0)
    decision = policy.failed(1, 3.0)
    assert decision.verdict is Verdict.LEAVE_OUT
    assert decision.reason == "it failed 3 times in a row, each within 60 s of its start"
    assert states(policy) == [RUNNING, OUT]
    assert policy.working == [0]
    assert policy.restarts_left == 8


def test_three_failures_are_not_in_a_row_if_a_long_life_is_between():
    policy = begun("1:2:2", max_restarts=100)
    for life in (1, 1, 61, 1, 1, 61, 1, 1):
        restart(policy, 1, life)
    assert policy.failed(1, 1).verdict is Verdict.LEAVE_OUT


def test_without_restarts_a_worker_is_left_out():
    policy = begun("1:3:3", max_restarts=2)
    restart(policy, 0, 100.0)
    restart(policy, 1, 100.0)
    assert policy.failed(2, 100.0) == EndDecision(Verdict.LEAVE_OUT, reason="no restarts left")
    assert states(policy) == [RUNNING, RUNNING, OUT]


def test_no_restarts_at_all():
    policy = begun("1:2:2", max_restarts=0)
    assert policy.failed(0, 100.0).verdict is Verdict.LEAVE_OUT
    assert policy.failed(1, 100.0).verdict is Verdict.FAIL


def test_the_job_fails_when_fewer_than_the_minimum_can_run_again():
    policy = begun("2:3:3", max_restarts=1)
    restart(policy, 2, 100.0)
    assert policy.failed(2, 100.0).verdict is Verdict.LEAVE_OUT
    assert policy.failed(1, 100.0) == EndDecision(
        Verdict.FAIL, reason="no restarts left; too few workers remain (1, expected at least 2)"
    )


def test_a_slot_that_waits_counts_as_one_that_can_run():
    policy = begun("2:3:3")
    assert policy.failed(0, 100.0).verdict is Verdict.RESTART
    assert policy.awaits_start and policy.working == [0, 1, 2]
    for _ in range(2):
        restart(policy, 1, 1.0)
    assert policy.failed(1, 1.0).verdict is Verdict.LEAVE_OUT
    assert policy.working == [0, 2]


def test_all_may_wait_at_once():
    policy = begun("2:2")
    assert [policy.failed(slot, 1.0).verdict for slot in (0, 1)] == [Verdict.RESTART] * 2
    assert not policy.is_done
    policy.restarted(1)
    assert states(policy) == [WAITING, RUNNING]


def test_a_final_exit_code_fails_the_job_at_once():
    policy = ElasticPolicy(WorkerRange(1, 4, 3), final_codes=(65,))
    policy.begin()
    policy.slots_of_failing_host = lambda slot, started, ended: None
    ((_, killed),) = policy.decide([TaskEnd(0, code=-9, at=1.0)], False)
    assert killed.verdict is Verdict.RESTART
    ((_, final),) = policy.decide([TaskEnd(1, code=65, at=2.0)], False)
    assert final == EndDecision(Verdict.FAIL, reason="another start would fail too")


def test_leaving_is_no_failure_and_restarts_nothing():
    policy = begun("2:3:3")
    for slot in (1, 0, 2):
        assert not policy.is_done
        assert policy.left(slot) is False
    assert policy.is_done and not policy.finished
    assert states(policy) == [FREE] * 3


def test_a_failure_when_too_few_are_left_is_not_followed_by_a_restart():
    policy = begun("2:3:2")
    policy.left(0)
    assert policy.failed(1, 100.0) == EndDecision(
        Verdict.FAIL, reason="too few workers remain (0, expected at least 2)"
    )


def test_after_the_first_end_nothing_is_started():
    policy = begun("1:4:4")
    policy.failed(3, 1.0)
    policy.scale(3)
    policy.failed(2, 1.0)
    assert policy.end(1) == [2]
    assert policy.finished and not policy.is_done
    assert policy.failed(0, 100.0) == EndDecision(
        Verdict.FAIL_AT_END, reason="worker 1 has finished before"
    )
    assert policy.is_done
    with pytest.raises(ScaleError, match="the job is ending: worker 1 has finished"):
        policy.scale(2)


def test_workers_that_were_started_later_may_come_too_late():
    policy = begun("1:4:2")
    policy.scale(3)
    policy.failed(1, 100.0)
    policy.restarted(1)
    assert policy.latecomers == []
    policy.end(0)
    assert policy.latecomers == [1, 2]
    late = EndDecision(Verdict.TOO_LATE, reason="worker 0 has finished before")
    assert policy.failed(2, 3.0) == policy.failed(1, 3.0) == late
    assert policy.is_done


def test_nobody_is_late_while_one_runs_that_was_there_from_the_beginning():
    policy = begun("1:4:2")
    policy.scale(3)
    policy.end(0)
    assert policy.latecomers == []


def test_a_slot_that_was_to_return_does_not_after_the_first_end():
    policy = begun("1:2:2")
    policy.scale(1)
    assert policy.scale(2) == Changes(start_later=(1,))
    assert policy.end(0) == [1]
    assert policy.left(1) is False
    assert states(policy) == [FINISHED, FREE]


def test_scaling_up_takes_the_lowest_free_slots():
    policy = begun("1:5:3")
    policy.left(1)
    assert policy.scale(4) == Changes(start=(1, 3))
    assert policy.scale(4) == Changes()
    assert policy.scale(5) == Changes(start=(4,))


def test_scaling_down_takes_the_highest_numbers():
    policy = begun("1:5:5")
    policy.failed(3, 1.0)
    assert policy.scale(2) == Changes(leave=(2, 4), cancel=(3,))
    assert states(policy) == [RUNNING, RUNNING, LEAVING, FREE, LEAVING]
    assert policy.working == [0, 1]
    assert policy.left(4) is False
    assert states(policy) == [RUNNING, RUNNING, LEAVING, FREE, FREE]


def test_a_leaving_worker_can_be_asked_back_and_sent_again():
    policy = begun("1:3:3")
    policy.scale(1)
    assert policy.scale(3) == Changes(start_later=(1, 2))
    assert policy.scale(2) == Changes(cancel=(2,))
    assert states(policy) == [RUNNING, RETURNING, LEAVING]
    assert policy.left(1) is True
    assert policy.left(2) is False
    assert states(policy) == [RUNNING, RUNNING, FREE]


def test_scaling_revives_a_slot_that_was_left_out_at_last():
    policy = begun("1:4:3", max_restarts=9)
    for _ in range(2):
        restart(policy, 0, 1.0)
    policy.failed(0, 1.0)
    assert policy.scale(3) == Changes(start=(3,))
    assert policy.scale(4) == Changes(start=(0,))
    # It has its three attempts again.
    assert [restart(policy, 0, 1.0) for _ in range(2)] == [1, 2]
    assert policy.failed(0, 1.0).verdict is Verdict.LEAVE_OUT


@pytest.mark.parametrize("count", [-1, 0, 1, 6, 10**12])
def test_a_number_outside_the_range_is_refused_and_changes_nothing(count):
    policy = begun("2:5:3")
    with pytest.raises(ScaleError, match=f"expected 2 to 5 workers, .* received {count}$"):
        policy.scale(count)
    assert states(policy) == [RUNNING] * 3 + [FREE] * 2


def test_a_job_that_all_workers_have_left_is_not_scaled():
    policy = begun("1:3:2")
    policy.left(0)
    assert not policy.is_ending
    policy.left(1)
    assert policy.is_ending
    with pytest.raises(ScaleError, match=r"^the job is ending: all workers have left$"):
        policy.scale(2)
    assert states(policy) == [FREE] * 3


def test_a_worker_of_a_host_that_is_left_out_starts_again_with_a_fresh_count():
    policy = begun("1:3:3")
    restart(policy, 2, life=1)
    restart(policy, 2, life=1)
    assert policy.move(2, there=[2]) == 1.0
    assert (policy.state(2), policy.restarts_left) == (WAITING, 7)
    policy.restarted(2)
    assert [restart(policy, 2, life=1) for _ in range(2)] == [1, 2]
    assert policy.failed(2, life=1).verdict is Verdict.LEAVE_OUT


def test_a_job_that_needs_the_host_keeps_it():
    policy = begun("2:3:3")
    # The other worker of that host waits for its restart, and would wait for the host.
    assert policy.failed(1, life=1).verdict is Verdict.RESTART
    assert policy.move(2, there=[1, 2]) is None
    assert policy.move(2, there=[2]) is not None


def test_without_restarts_no_worker_moves():
    policy = begun("1:3:3", max_restarts=0)
    assert policy.move(2, there=[2]) is None and policy.state(2) is RUNNING


def test_a_worker_that_waits_for_a_host_counts_for_no_minimum():
    policy = begun("1:2:2")
    policy.move(1, there=[1])
    policy.restarted(1)
    policy.hold(1)
    assert (policy.held, policy.state(1), policy.working) == ([1], WAITING, [0, 1])
    assert policy.not_held == [0]
    assert policy.move(0, there=[0]) is None
    for _ in range(2):
        restart(policy, 0, life=1)
    decision = policy.failed(0, life=1)
    assert decision.verdict is Verdict.FAIL and "remain (0, expected" in decision.reason
    policy.restarted(1)
    assert policy.held == []


def test_a_held_worker_can_be_scaled_down_and_is_not_started_at_the_end():
    policy = begun("1:2:2")
    policy.move(1, there=[1])
    policy.restarted(1)
    policy.hold(1)
    assert policy.scale(1) == Changes(cancel=(1,)) and policy.held == []
    assert policy.scale(2) == Changes(start=(1,))
    policy.hold(1)
    assert policy.end(0) == [1] and policy.is_done and policy.held == []


def decide(policy, index, code, is_interrupted=False, **fields):
    (found,) = policy.decide([TaskEnd(index, code, **fields)], is_interrupted)
    return found[1]


def test_a_job_begins_with_its_servers():
    assert ElasticPolicy(WorkerRange(1, 4, 2), servers=2).begin() == [0, 1, 4, 5]


def test_a_worker_that_finishes_cancels_the_restarts():
    policy = begun("1:3:3")
    assert decide(policy, 2, 1, at=9.0).verdict is Verdict.RESTART
    assert decide(policy, 0, 0) == EndDecision(Verdict.FINISHED, cancelled=(2,))
    assert states(policy) == [FINISHED, RUNNING, FREE]


@pytest.mark.parametrize("code", [0, 1, 143, -15])
def test_a_worker_that_was_told_to_leave_has_left(code):
    policy = begun("1:2:2")
    policy.scale(1)
    assert decide(policy, 1, code, told_to_stop=True) == EndDecision(Verdict.LEFT)
    assert states(policy) == [RUNNING, FREE] and policy.restarts_left == 10


def test_a_worker_that_was_asked_back_returns():
    policy = begun("1:2:2")
    policy.scale(1)
    policy.scale(2)
    assert decide(policy, 1, 143) == EndDecision(Verdict.RETURN)
    assert states(policy) == [RUNNING, RUNNING]


def test_a_preempted_worker_has_left():
    policy = begun("1:2:2")
    assert decide(policy, 0, 143) == EndDecision(Verdict.LEFT)
    assert states(policy) == [FREE, RUNNING]


def test_a_signal_to_the_launcher_decides_before_a_failure():
    policy = begun("1:2:2", servers=1)
    for index in (0, 2):
        assert decide(policy, index, 1, is_interrupted=True) == EndDecision(Verdict.NOTHING)
    assert states(policy) == [RUNNING, RUNNING] and policy.restarts_left == 10


def test_a_life_is_that_of_the_failed_worker():
    policy = begun("1:2:2", backoff=Backoff(first=2.0, soon=60.0))
    waits = []
    for started, ended in ((0.0, 5.0), (10.0, 20.0), (30.0, 100.0)):
        waits.append(decide(policy, 0, 1, started_at=started, at=ended).wait)
        policy.restarted(0)
    assert waits == [2.0, 4.0, 2.0]


def test_a_failed_server_is_replaced_as_long_as_there_are_restarts():
    policy = begun("1:2:2", max_restarts=1, servers=1)
    assert decide(policy, 2, 0) == EndDecision(Verdict.NOTHING)
    assert decide(policy, 2, 1, told_to_stop=True) == EndDecision(Verdict.NOTHING)
    assert decide(policy, 2, 143) == EndDecision(Verdict.REPLACE)
    assert decide(policy, 2, 1) == EndDecision(Verdict.FAIL, reason="no restarts left")


def test_a_server_is_not_replaced_after_the_training():
    policy = begun("1:1:1", servers=1)
    policy.end(0)
    assert decide(policy, 1, 1) == EndDecision(Verdict.NOTHING)


def test_a_worker_of_a_failing_host_moves_if_the_job_can_do_without_the_host():
    policy = begun("1:4:3", backoff=Backoff(first=3.0))
    asked = []

    def there(slot, started, ended):
        asked.append((slot, started, ended))
        return [1]

    policy.slots_of_failing_host = there
    assert decide(policy, 1, 1, started_at=2.0, at=7.0) == EndDecision(Verdict.MOVE, wait=3.0)
    assert asked == [(1, 2.0, 7.0)] and policy.held == [1]
    policy.slots_of_failing_host = lambda *failure: [0, 2]
    assert decide(policy, 0, 1).verdict is Verdict.MOVE
    # The other worker is needed: it starts again where it was.
    assert decide(policy, 2, 1).verdict is Verdict.RESTART


def test_of_several_ends_the_earliest_comes_first():
    policy = begun("1:2:2")
    ends = [TaskEnd(0, 1, at=8.0), TaskEnd(1, 0, at=7.0)]
    found = [(end.index, decision.verdict) for end, decision in policy.decide(ends, False)]
    assert found == [(1, Verdict.FINISHED), (0, Verdict.FAIL_AT_END)]


def test_the_cause_lists_the_last_failures_before_it():
    policy = begun("1:1:1")
    cause = "the job failed because of worker 0: exit code 3, 1.2 s after its start"
    assert policy.cause("worker 0", "exit code 3", 1.23, []) == cause
    assert policy.cause("worker 0", "exit code 3", 1.23, ["a", "b"]) == (
        f"{cause}; it had survived the failures of a, b"
    )
    many = [str(number) for number in range(13)]
    listed = ", ".join(many[3:])
    assert policy.cause("worker 0", "exit code 3", 1.23, many) == (
        f"{cause}; it had survived the failures of 3 others, {listed}"
    )
