"""`Membership.watch`: a collective that stalls ends when a member does not answer."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from single.elastic.elastic_members import TIMEOUT, closing, cut, formed, founded, summed
from support.elastic.control_tasks import Background


def test_a_member_that_does_not_answer_is_given_up():
    with closing() as processes:
        known = founded(processes, 3)
        for process in processes[:2]:
            process.membership.watch(process.communicator, stalled=0.3, silence=0.5)
        others = frozenset([processes[2].address])
        for process in processes[:2]:
            process.probes.cut = others
        began = time.monotonic()
        calls = [Background(summed, process) for process in processes[:2]]
        for call in calls:
            with pytest.raises(tf.errors.UnavailableError) as caught:
                call.result()
            assert f"worker 2 at {known[2]} does not answer" in str(caught.value)
        assert 0.7 < time.monotonic() - began < TIMEOUT / 2
        cut(processes[:2], processes[2:])
        formed(processes[:2])


def test_a_member_that_is_only_slow_is_waited_for():
    with closing() as processes:
        founded(processes, 2)
        processes[0].membership.watch(processes[0].communicator, stalled=0.1, silence=0.3)
        call = Background(summed, processes[0])
        with pytest.raises(TimeoutError):
            call.result(timeout=1.5)
        assert summed(processes[1]) == call.result() == 4.0


def test_the_watch_ends_with_the_membership():
    with closing() as processes:
        founded(processes, 2)
        processes[0].membership.watch(processes[0].communicator, stalled=0.1, silence=0.3)
        call = Background(summed, processes[0])
        processes[1].crash()
        with pytest.raises(tf.errors.UnavailableError):
            call.result()
        processes[0].leave()
