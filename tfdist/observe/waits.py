"""The waits of every task, which the leader of a job asks for: see `stragglers`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from tfdist.config.tls import Tls
from tfdist.control.client import Caller, ControlClient, UnreachableError
from tfdist.control.held_calls import ClientContext
from tfdist.control.service import Service
from tfdist.errors import TfdistError
from tfdist.observe.pauses import pauses

# Seconds for one answer, and for the answers of all tasks.
_WAIT = 1.0
_TIMEOUT = 5.0


class PeerWaits(Protocol):
    """The record of this task's waiting for others; a `Communicator` is one."""

    def waits(self) -> dict[str, float]:
        """Returns the seconds of waiting since its start, by the name of the awaited task."""

    def take_longest_wait(self, name: str) -> str:
        """Returns the operation of the longest wait for `name` since the last call, if any."""


@dataclasses.dataclass(frozen=True)
class TaskWaitsRequest:
    """The leader asks a task for its waits."""

    wait: float


WAITS = Service("Waits", 1, "a task of the job")
TASK_WAITS = WAITS.method(TaskWaitsRequest, is_quick=True)


@dataclasses.dataclass(frozen=True)
class TaskWaits:
    """The waits of one task since its start.

    Attributes:
      seconds: by the name of the awaited task.
      causes: the operation of the longest wait since the last answer, by the same names; may be
        empty.
      paused: the seconds in which it was busy with its own beginning or with saving.
    """

    seconds: Mapping[str, float]
    causes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    paused: float = 0.0


# The connections of this process to the others; set by `follow`.
_sources: list[PeerWaits] = []


def follow(source: PeerWaits) -> None:
    """Answers with the waits of a source from now on."""
    _sources.append(source)


def forget(source: PeerWaits) -> None:
    """Answers without it."""
    if source in _sources:
        _sources.remove(source)


def of_this_task() -> TaskWaits:
    """Returns the waits of this task; the operations of the longest waits are told once."""
    seconds: dict[str, float] = {}
    causes: dict[str, str] = {}
    for source in list(_sources):
        seconds |= source.waits()
        causes |= {name: source.take_longest_wait(name) for name in seconds}
    return TaskWaits(seconds, causes, pauses.seconds)


def _answer(request: TaskWaitsRequest, context: ClientContext) -> dict[str, object]:
    found = of_this_task()
    return {
        "status": "waits",
        "seconds": dict(found.seconds),
        "causes": dict(found.causes),
        "paused": found.paused,
    }


# Of the server of every task that trains.
HANDLERS = {TASK_WAITS: _answer}


class WaitsClient:
    """Asks all tasks of a job for their waits.

    Args:
      caller: this task.
      secret: the shared secret or None.
      tls: the origin of this task's certificate, or None.
    """

    def __init__(self, caller: Caller, secret: bytes | None, tls: Tls | None = None) -> None:
        self._caller = caller
        self._secret = secret
        self._tls = tls

    def ask(self, addresses: Sequence[str]) -> list[TaskWaits] | None:
        """Returns the waits of each task; None if one of them does not answer.

        Args:
          addresses: of all tasks that train, in the order of their ranks; this task's is one.
        """
        deadline = time.monotonic() + _TIMEOUT
        found: list[TaskWaits] = []
        for address in addresses:
            if address == self._caller.address:
                found.append(of_this_task())
                continue
            name = f"the task at {address}"
            client = ControlClient(self._caller, self._secret, address, name, self._tls)
            try:
                answer = client.call(TASK_WAITS, TaskWaitsRequest(_WAIT), _WAIT, patient=False)
                found.append(
                    TaskWaits(dict(answer["seconds"]), dict(answer["causes"]), answer["paused"])
                )
            except (UnreachableError, TfdistError, KeyError, TypeError, ValueError):
                return None  # it ends, or is none of this job any more
            finally:
                client.close()
            if time.monotonic() > deadline:
                return None
        return found
