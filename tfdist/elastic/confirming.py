"""Asking at the addresses that unknown callers name, who is there.

Any process can name an address, again and again, and at many of them no process answers. So each is
asked now and then, and few are that were not given to this process. Addresses that wait for a place
take turns by the hosts of their callers: a stranger's host with a hundred addresses has the turns
of one.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection

from tfdist.elastic.protocol.generations import Generations
from tfdist.elastic.protocol.probes import Probes

# Addresses that this process was not given, and at which it asks at a time.
_MAX_STRANGE = 8
# Callers' hosts of which addresses wait, and addresses of each.
_MAX_HOSTS = 64
_MAX_OF_A_HOST = 64


class Confirming:
    """The addresses at which a process of an elastic job asks who is there.

    Args:
      state: learns the answers.
      probes: returns the calls to other processes.
      given: the addresses that this process was given; these are asked at once.
      pause: seconds after an answer until the same address is asked again.
      closed: this process leaves the job.
    """

    def __init__(
        self,
        state: Generations,
        probes: Callable[[], Probes],
        given: Collection[str],
        pause: float,
        closed: threading.Event,
    ) -> None:
        self._state = state
        self._probes = probes
        self._given = frozenset(given)
        self._pause = pause
        self._closed = closed
        self._lock = threading.Lock()
        # By address: whether a process has come since it was asked.
        self._asked: dict[str, bool] = {}
        # The callers' hosts of those among them that were not given.
        self._places: dict[str, str] = {}
        # By the caller's host, the next one first: the addresses that wait for a place.
        self._waiting: collections.OrderedDict[str, dict[str, None]] = collections.OrderedDict()

    def ask(self, address: str, host: str) -> None:
        """Begins to ask at an address; does not wait. A process that is left out calls again.

        Args:
          address: where a process says that it is.
          host: the host of its call.
        """
        with self._lock:
            if address in self._asked:
                self._asked[address] = True
            elif address in self._given:
                self._begin(address)
            else:
                self._add(address, host)
                self._fill()

    def _add(self, address: str, host: str) -> None:
        waiting = self._waiting.setdefault(host, {})
        waiting[address] = None
        if len(waiting) > _MAX_OF_A_HOST:
            del waiting[next(iter(waiting))]
        if len(self._waiting) > _MAX_HOSTS:
            self._waiting.popitem(last=False)

    def _fill(self) -> None:
        while (address := self._take()) is not None:
            self._begin(address)

    def _take(self) -> str | None:
        """Gives a free place to the host that has the fewest, in turn; returns the address."""
        while self._waiting and len(self._places) < _MAX_STRANGE:
            taken = collections.Counter(self._places.values())
            host = min(self._waiting, key=lambda host: taken[host])
            waiting = self._waiting.pop(host)
            address = next(iter(waiting))
            del waiting[address]
            if waiting:
                self._waiting[host] = waiting  # behind the others
            if address not in self._asked:
                self._asked[address] = False
                self._places[address] = host
                return address
        return None

    def _begin(self, address: str) -> None:
        self._asked[address] = False
        threading.Thread(
            target=self._run, args=(address,), name="tfdist-confirm", daemon=True
        ).start()

    def _run(self, address: str | None) -> None:
        while address is not None:
            answer = self._probes().probe_stranger(address)
            if answer is not None:
                self._state.confirm(address, answer.is_from)
            self._closed.wait(self._pause)
            with self._lock:
                address = self._after(address)

    def _after(self, address: str) -> str | None:
        """Returns the address that is asked after another one: perhaps the same again."""
        # A process that comes after the answer is asked after the pause.
        has_come = self._asked.pop(address)
        host = self._places.pop(address, None)
        if self._closed.is_set():
            return None
        if has_come and host is None:
            self._asked[address] = False
            return address
        if has_come and host is not None:
            self._add(address, host)
        return self._take()
