"""At which addresses that callers name a process asks, and in which order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from tfdist.elastic.confirming import Confirming

TIMEOUT = 20.0
GIVEN = ("host0:1", "host1:1")


class Questions:
    """Stands for the calls at addresses, each of which waits until the test lets it end."""

    def __init__(self) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.over = threading.Event()
        self._ends: dict[str, threading.Semaphore] = {}

    def probe_stranger(self, address: str) -> None:
        end = self._ends.setdefault(address, threading.Semaphore(0))
        self.begun.put(address)
        while not end.acquire(timeout=0.01) and not self.over.is_set():
            pass

    def next(self, count: int = 1) -> list[str]:
        """Returns the addresses that are asked next."""
        return [self.begun.get(timeout=TIMEOUT) for _ in range(count)]

    def end(self, *addresses: str) -> None:
        """Lets questions end, without an answer."""
        for address in addresses:
            self._ends[address].release()


@pytest.fixture(name="questions")
def _questions() -> Questions:
    return Questions()


@pytest.fixture(name="confirming")
def _confirming(questions) -> Iterator[Confirming]:
    before, closed = set(threading.enumerate()), threading.Event()
    yield Confirming(None, lambda: questions, GIVEN, 0.001, closed)
    closed.set()
    questions.over.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT)


def test_the_hosts_of_callers_take_turns(confirming, questions):
    for number in range(50):
        confirming.ask(f"stranger{number}:1", "10.0.0.6")
    first = questions.next(8)
    assert set(first) == {f"stranger{number}:1" for number in range(8)}
    # All places are taken, and more addresses of the stranger's wait.
    confirming.ask("honest:1", "10.0.0.7")
    confirming.ask("honest:2", "10.0.0.7")
    confirming.ask("honest:3", "10.0.0.8")
    for number in range(50):
        confirming.ask(f"stranger{number}:1", "10.0.0.6")
    asked = []
    for address in first[:3]:
        questions.end(address)
        asked += questions.next()
    assert sorted(asked) == ["honest:1", "honest:2", "honest:3"]
    questions.end(*asked, *first[3:])
    assert all("stranger" in address for address in questions.next(8))


def test_a_given_address_needs_no_place(confirming, questions):
    for number in range(20):
        confirming.ask(f"stranger{number}:1", "10.0.0.6")
    questions.next(8)
    for address in GIVEN:
        confirming.ask(address, "10.0.0.6")
        assert questions.next() == [address]


def test_an_address_is_asked_again_if_it_was_named_again(confirming, questions):
    for address in ("strange:1", GIVEN[0]):
        confirming.ask(address, "10.0.0.6")
        assert questions.next() == [address]
        confirming.ask(address, "10.0.0.6")
        questions.end(address)
        assert questions.next() == [address]
        questions.end(address)
        assert questions.begun.empty()


def test_few_addresses_wait(confirming, questions):
    for host in range(200):
        for number in range(100):
            confirming.ask(f"strange{host}:{number}", f"10.0.0.{host}")
    assert len(confirming._waiting) == 64
    assert all(len(waiting) <= 64 for waiting in confirming._waiting.values())
    assert len(questions.next(8)) == 8
    assert questions.begun.empty()
