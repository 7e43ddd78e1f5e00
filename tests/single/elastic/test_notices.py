"""The members that leave an elastic job after SIGTERM, and when all end instead."""

from __future__ import annotations

import types

import pytest

from tfdist.config.elastic import Elastic
from tfdist.elastic.job import ElasticJob
from tfdist.elastic.phase import PHASE_TRANSITIONS, Phase, PlannedChange
from tfdist.preemption.notice import notice
from tfdist.state_machine import StateMachine


@pytest.fixture
def job():
    made = object.__new__(ElasticJob)
    made.elastic = Elastic(1, 2)
    made.communicator = types.SimpleNamespace(size=2)
    made._membership = types.SimpleNamespace(newcomers_wait=lambda: False)
    made._part = StateMachine("a process", PHASE_TRANSITIONS, Phase.NEWCOMER)
    made._part.go(Phase.MEMBER)
    made._planned = PlannedChange.NONE
    return made


def test_a_notice_that_comes_during_a_step_waits_for_the_next_one(job, monkeypatch):
    """Else both of two workers would leave, each for the other to continue, and none would save."""
    assert job.flags() == [0.0, 0.0]
    monkeypatch.setattr(notice, "at", 1.0)
    job.take_flags([0.0, 1.0])  # the other one leaves
    assert not job.leaves and not job.ends and job.change_is_planned
    job.communicator.size = 1
    assert job.flags() == [0.0, 1.0]
    job.take_flags([0.0, 1.0])
    assert job.ends and not job.leaves


def test_one_leaves_and_two_end(job, monkeypatch):
    monkeypatch.setattr(notice, "at", 1.0)
    assert job.flags() == [0.0, 1.0]
    job.take_flags([0.0, 1.0])
    assert job.leaves and not job.ends and not job.change_is_planned
    job.take_flags([0.0, 1.0])
    assert job.leaves
    job.flags()
    job.take_flags([0.0, 2.0])
    assert job.ends and not job.leaves
