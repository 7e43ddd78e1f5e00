"""The states of a launched job match the drawing in its module."""

from __future__ import annotations

import itertools

import pytest

from support.drawings import drawn_transitions
from tfdist.launch import job_state
from tfdist.launch.job_state import TRANSITIONS, JobLifecycle, JobState

R, A, N, L, S, E = (
    JobState.RUNNING,
    JobState.RESTARTING,
    JobState.NOTICED,
    JobState.LINGERING,
    JobState.STOPPING,
    JobState.ENDED,
)
# In the states' order, which all processes of a run of pytest share.
PAIRS = list(itertools.product(JobState, JobState))
ALLOWED = [(before, to) for before, to in PAIRS if to in TRANSITIONS[before]]
REFUSED = [pair for pair in PAIRS if pair not in ALLOWED]


def lifecycle(*path):
    job = JobLifecycle()
    for state in path:
        job.go(state)
    return job


def paths():
    """Returns a path from RUNNING to each state that can be reached."""
    found = {R: ()}
    waiting = [R]
    for state in waiting:
        for to in TRANSITIONS[state]:
            if to not in found:
                found[to] = (*found[state], to)
                waiting.append(to)
    return found


def test_the_table_is_the_drawing():
    drawn = drawn_transitions(job_state.__doc__)
    table = {state.name: {to.name for to in follow} for state, follow in TRANSITIONS.items()}
    assert table == {state.name: drawn.get(state.name, set()) for state in JobState}
    assert set(drawn) <= {state.name for state in JobState}


def test_a_job_can_come_to_each_state():
    assert set(paths()) == set(JobState)
    for state, path in paths().items():
        assert lifecycle(*path).state is state


@pytest.mark.parametrize(("before", "to"), ALLOWED)
def test_a_job_goes_where_the_table_says(before, to):
    assert lifecycle(*paths()[before], to).state is to


@pytest.mark.parametrize(("before", "to"), REFUSED)
def test_a_job_goes_nowhere_else(before, to):
    job = lifecycle(*paths()[before])
    with pytest.raises(RuntimeError, match=f"^a job that is {before.name} .*received {to.name}$"):
        job.go(to)
    assert job.state is before


def test_a_refusal_lists_the_expected_states():
    with pytest.raises(RuntimeError) as refused:
        lifecycle(A).go(L)
    assert str(refused.value) == (
        "a job that is RESTARTING expected one of ['RUNNING', 'STOPPING'] to follow, "
        "received LINGERING"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((), set()),
        ((A,), {"is_stopping", "is_restarting"}),
        ((A, R), set()),
        ((N,), {"is_stopping"}),
        ((L,), {"is_lingering"}),
        ((L, S), {"is_stopping"}),
        ((L, E), {"has_ended"}),
    ],
)
def test_questions_are_answered_by_the_state(path, expected):
    questions = ("is_stopping", "is_restarting", "is_lingering", "has_ended")
    job = lifecycle(*path)
    assert {question for question in questions if getattr(job, question)} == expected
