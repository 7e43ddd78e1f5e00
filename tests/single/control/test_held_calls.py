"""Calls that a server holds: the events that wake them, and how often."""

from __future__ import annotations

import time

from support.elastic.control_tasks import Background
from tfdist.control.held_calls import ClientContext, HeldCalls


class Held:
    """A call that waits in a thread until it is told that it is decided."""

    def __init__(self, calls, seconds=20.0):
        self.decided = False
        self.looks = 0
        self.context = ClientContext()
        self._calls = calls
        self._call = Background(self._hold, seconds)
        while not self.looks:
            time.sleep(0.001)

    def _hold(self, seconds):
        with self._calls.lock:
            self._calls.hold(self.context, seconds, self._look)

    def _look(self):
        self.looks += 1
        return self.decided

    def join(self):
        self._call.result()


def test_each_call_is_woken_alone():
    calls = HeldCalls()
    held = [Held(calls) for _ in range(50)]
    for call in held[:25]:
        with calls.lock:
            call.decided = True
            calls.wake(call.context)
        call.join()
    assert [call.looks for call in held] == [2] * 25 + [1] * 25
    with calls.lock:
        calls.wake(held[0].context)  # it is not held any more
        calls.wake_all()  # the others are not decided
    while not all(call.looks == 2 for call in held):
        time.sleep(0.001)
    with calls.lock:
        for call in held:
            call.decided = True
        calls.wake_all()
    for call in held:
        call.join()


def test_a_broken_connection_ends_its_call_alone():
    calls = HeldCalls()
    held = [Held(calls) for _ in range(3)]
    held[1].context.disconnect()
    held[1].join()
    assert [call.looks for call in held] == [1, 1, 1]
    for call in (held[0], held[2]):
        call.context.disconnect()
        call.join()


def test_the_time_of_a_call_is_bounded(monkeypatch):
    monkeypatch.setattr("tfdist.control.held_calls._MAX_WAIT", 0.1)
    for seconds in (1e300, 0.01, -1.0):
        Held(HeldCalls(), seconds).join()
