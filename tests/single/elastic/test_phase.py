"""The phases of a member of an elastic job match the drawing in their module."""

from __future__ import annotations

import itertools
import types

import pytest

from support.drawings import drawn_transitions
from tfdist.config.elastic import Elastic
from tfdist.elastic import phase
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.elastic.phase import PHASE_TRANSITIONS, Phase, PlannedChange
from tfdist.state_machine import StateMachine

NEWCOMER, STOPPING, MEMBER, LEAVING, ENDING = (
    Phase.NEWCOMER,
    Phase.STOPPING,
    Phase.MEMBER,
    Phase.LEAVING,
    Phase.ENDING,
)
ALLOWED = {(before, to) for before in Phase for to in PHASE_TRANSITIONS[before]}


def in_phase(state):
    """A job without members, in one phase."""
    job = object.__new__(ElasticJob)
    job.elastic = Elastic(1, 4)
    job.communicator = types.SimpleNamespace(size=1 if state in (NEWCOMER, STOPPING) else 4)
    job._part = StateMachine("a process", PHASE_TRANSITIONS, state)
    job._planned = PlannedChange.NONE
    job._has_told_notice = True
    job.owed = types.SimpleNamespace(drop=lambda: None)
    return job


def test_the_table_is_the_drawing():
    drawn = drawn_transitions(phase.__doc__)
    table = {state.name: {to.name for to in follow} for state, follow in PHASE_TRANSITIONS.items()}
    assert table == drawn and set(drawn) == {state.name for state in Phase}


def test_each_phase_can_be_reached():
    found = [NEWCOMER]
    for state in found:
        found += [to for to in PHASE_TRANSITIONS[state] if to not in found]
    assert set(found) == set(Phase)


@pytest.mark.parametrize(("before", "to"), list(itertools.product(Phase, Phase)))
def test_a_transition_that_is_not_in_the_table_is_refused(before, to):
    part = StateMachine("a process", PHASE_TRANSITIONS, before)
    if (before, to) in ALLOWED:
        part.go(to)
        assert part.state is to
        return
    with pytest.raises(RuntimeError, match=f"^a process that is {before.name} .* {to.name}$"):
        part.go(to)
    assert part.state is before


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (NEWCOMER, {"is_newcomer"}),
        (STOPPING, {"is_newcomer", "ends"}),
        (MEMBER, set()),
        (LEAVING, {"leaves"}),
        (ENDING, {"ends"}),
    ],
)
def test_questions_are_answered_by_the_phase(state, expected):
    job = in_phase(state)
    questions = ("is_newcomer", "ends", "leaves")
    assert {question for question in questions if getattr(job, question)} == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (NEWCOMER, STOPPING),
        (STOPPING, STOPPING),
        (MEMBER, ENDING),
        (LEAVING, ENDING),
        (ENDING, ENDING),
    ],
)
def test_too_few_members_would_be_left(state, expected):
    job = in_phase(state)
    job.take_flags([0.0, float(job.size)])
    assert job._part.state is expected and not job.change_is_planned


@pytest.mark.parametrize(
    ("state", "expected"), [(MEMBER, LEAVING), (LEAVING, LEAVING), (ENDING, ENDING)]
)
def test_a_member_with_a_notice_leaves_unless_all_end(state, expected):
    job = in_phase(state)
    job.take_flags([0.0, 1.0])
    assert job._part.state is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (NEWCOMER, NEWCOMER),
        (STOPPING, STOPPING),
        (MEMBER, NEWCOMER),
        (LEAVING, NEWCOMER),
        (ENDING, STOPPING),
    ],
)
def test_a_process_that_falls_behind_is_a_newcomer(state, expected):
    job = in_phase(state)
    job._fall_behind()
    assert job._part.state is expected and job.is_newcomer


@pytest.mark.parametrize(("state", "expected"), [(NEWCOMER, MEMBER), (STOPPING, ENDING)])
def test_a_newcomer_that_joins_is_a_member(state, expected):
    job = in_phase(state)
    job._join()
    assert job._part.state is expected and not job.is_newcomer


@pytest.mark.parametrize(
    ("flags", "told", "planned"),
    [
        ([(0.0, 0.0)], False, PlannedChange.NONE),
        ([(2.0, 0.0)], False, PlannedChange.ADMISSION),
        ([(0.0, 1.0)], False, PlannedChange.DEPARTURE),
        ([(1.0, 1.0)], False, PlannedChange.DEPARTURE),
        ([(0.0, 1.0), (1.0, 0.0)], False, PlannedChange.DEPARTURE),
        ([(1.0, 0.0), (0.0, 1.0)], False, PlannedChange.DEPARTURE),
        # The leaving member takes part in the change for the newcomers.
        ([(1.0, 1.0)], True, PlannedChange.ADMISSION),
        ([(0.0, 1.0)], True, PlannedChange.NONE),
        # All end.
        ([(1.0, 4.0)], True, PlannedChange.ADMISSION),
    ],
)
def test_flags_plan_a_change(flags, told, planned):
    job = in_phase(MEMBER)
    job._has_told_notice = told
    for both in flags:
        job.take_flags(both)
    assert job._planned is planned
    assert job.change_is_planned == (planned is not PlannedChange.NONE)


@pytest.mark.parametrize(
    ("planned", "admits", "lets_leave", "expected"),
    [
        (PlannedChange.NONE, True, True, False),
        (PlannedChange.ADMISSION, True, False, True),
        (PlannedChange.ADMISSION, False, True, False),
        (PlannedChange.DEPARTURE, True, False, True),
        (PlannedChange.DEPARTURE, False, True, True),
        (PlannedChange.DEPARTURE, False, False, False),
    ],
)
def test_a_change_comes_before_a_unit_that_permits_it(planned, admits, lets_leave, expected):
    job = in_phase(MEMBER)
    job._planned = planned
    unit = Unit("a unit", lambda: None, admits=admits, lets_leave=lets_leave)
    assert job._changes_before(unit) is expected
