"""The consequences of a task's end in a job of a fixed number of tasks: without processes."""

from __future__ import annotations

import signal

import pytest

from tfdist.launch.policies.decisions import EndDecision, TaskEnd, TaskRole, Verdict
from tfdist.launch.policies.fixed import FixedPolicy

WORKER = TaskRole(trains=True)
SERVER = TaskRole(serves=True)
EVALUATOR = TaskRole()
DATA = TaskRole(prepares_data=True)
NOTHING = EndDecision(Verdict.NOTHING)
FAIL = EndDecision(Verdict.FAIL)
NONE_LEFT = EndDecision(Verdict.FAIL, reason="no restarts left")


def begun(*roles, **options):
    policy = FixedPolicy(roles, **options)
    assert policy.begin() == list(range(len(roles)))
    return policy


def decide(policy, index, code, is_interrupted=False, **fields):
    (found,) = policy.decide([TaskEnd(index, code, **fields)], is_interrupted)
    assert found[0] == TaskEnd(index, code, **fields)
    return found[1]


def finish(policy, *indices):
    for index in indices:
        assert decide(policy, index, 0) == NOTHING


def test_a_job_is_done_when_all_training_tasks_have_finished():
    policy = begun(WORKER, WORKER, SERVER, EVALUATOR, DATA)
    finish(policy, 2, 1)
    assert not policy.is_done
    finish(policy, 0)
    assert policy.is_done and not policy.awaits_start


@pytest.mark.parametrize("code", [1, 3, -signal.SIGKILL, -signal.SIGTERM])
@pytest.mark.parametrize(
    ("roles", "index", "expected"),
    [
        ([WORKER, WORKER], 1, Verdict.RESTART_ALL),
        ([WORKER, EVALUATOR, DATA], 0, Verdict.RESTART_ALL),
        ([WORKER, EVALUATOR, DATA], 1, Verdict.REPLACE),
        ([WORKER, EVALUATOR, DATA], 2, Verdict.REPLACE),
        ([WORKER, SERVER], 0, Verdict.REPLACE),
        ([WORKER, SERVER], 1, Verdict.REPLACE),
    ],
)
def test_a_failed_task_starts_again_alone_if_it_can_be_replaced(roles, index, expected, code):
    policy = begun(*roles, restarts=2)
    assert decide(policy, index, code) == EndDecision(expected)
    assert policy.restarts_left == 1


def test_tasks_that_are_not_replaced_start_again_together():
    policy = begun(WORKER, SERVER, restarts=3, replaces=False)
    assert [decide(policy, index, 1).verdict for index in (0, 1)] == [Verdict.RESTART_ALL] * 2
    assert policy.restarts_left == 1


def test_the_job_fails_when_no_restarts_are_left():
    policy = begun(WORKER, WORKER, restarts=1)
    assert decide(policy, 0, 1) == EndDecision(Verdict.RESTART_ALL)
    policy.begin()
    assert decide(policy, 1, 1) == NONE_LEFT


def test_a_job_without_restarts_says_nothing_of_them():
    assert decide(begun(WORKER), 0, 1) == FAIL


def test_a_task_that_finished_before_a_restart_of_all_must_finish_again():
    policy = begun(WORKER, WORKER, restarts=1)
    finish(policy, 0)
    assert decide(policy, 1, 1) == EndDecision(Verdict.RESTART_ALL)
    policy.begin()
    finish(policy, 1)
    assert not policy.is_done
    finish(policy, 0)
    assert policy.is_done


def test_a_failure_after_a_signal_to_the_launcher_leads_to_no_restart():
    policy = begun(WORKER, restarts=1)
    assert decide(policy, 0, 1, is_interrupted=True) == FAIL
    assert policy.restarts_left == 1


@pytest.mark.parametrize(
    ("role", "expected"),
    [(SERVER, FAIL), (DATA, FAIL), (EVALUATOR, EndDecision(Verdict.REPLACE))],
)
def test_after_the_training_only_an_evaluator_starts_again(role, expected):
    policy = begun(WORKER, role, restarts=2)
    finish(policy, 0)
    assert decide(policy, 1, 1) == expected


def test_the_end_of_a_task_that_was_told_to_stop_is_no_failure():
    policy = begun(WORKER, SERVER, restarts=1)
    assert decide(policy, 1, -signal.SIGTERM, told_to_stop=True) == NOTHING
    assert decide(policy, 1, 143, told_to_stop=True) == NOTHING
    assert policy.restarts_left == 1


def test_a_preempted_training_task_is_no_failure():
    policy = begun(WORKER, WORKER, restarts=1)
    assert decide(policy, 1, 143) == EndDecision(Verdict.NOTICED)
    assert policy.restarts_left == 1 and not policy.is_done


def test_a_server_that_was_told_to_end_alone_has_failed():
    policy = begun(WORKER, SERVER, restarts=1)
    assert decide(policy, 1, 143) == EndDecision(Verdict.AWAIT_NOTICE)
    assert policy.restarts_left == 1
    assert decide(policy, 1, 143, alone=True) == EndDecision(Verdict.REPLACE)
    assert decide(policy, 1, 143, alone=True) == NONE_LEFT


def test_of_several_ends_that_by_a_signal_comes_first():
    policy = begun(WORKER, WORKER, WORKER)
    ends = [TaskEnd(0, 1), TaskEnd(2, 0), TaskEnd(1, -signal.SIGKILL)]
    assert [end.index for end, _ in policy.decide(ends, False)] == [1, 0, 2]


def test_all_ends_count_before_the_first_decision():
    policy = begun(WORKER, SERVER, restarts=1)
    ends = [TaskEnd(1, -signal.SIGKILL), TaskEnd(0, 0)]
    first, _ = policy.decide(ends, False)
    assert first == (ends[0], FAIL)


def test_an_end_after_the_last_decision_that_was_asked_for_takes_no_restart():
    policy = begun(WORKER, WORKER, restarts=2)
    decisions = policy.decide([TaskEnd(0, 1), TaskEnd(1, 1)], False)
    assert next(decisions)[1].verdict is Verdict.RESTART_ALL
    assert policy.restarts_left == 1


def test_the_cause_names_the_first_failure_alone():
    cause = begun(WORKER).cause("worker 0 on a", "exit code 3", 12.34, ["worker 1"])
    assert cause == "worker 0 on a failed first: exit code 3, after 12.3 s"
