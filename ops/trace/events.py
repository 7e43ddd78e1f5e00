"""The events that the flight recorder holds: collectives, requests to servers, and spans.

The ring is in C++ (`core/trace/event_ring.h`): the last 4,096 events of this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np

from tfdist.ops import library
from tfdist.ops.library import c_structure

RING_EVENTS = 4096
_KINDS = ("", "collective", "request", "span")
_STATES = ("", "submitted", "started", "done", "failed")


@c_structure("recorded_event")
class _Event(ctypes.Structure):
    """Has the layout of `Event` in core/trace/event.h."""

    _fields_ = [
        ("sequence", ctypes.c_uint64),
        ("communicator", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("signature", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("elements", ctypes.c_uint64),
        ("submitted", ctypes.c_uint64),
        ("started", ctypes.c_uint64),
        ("ended", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("state", ctypes.c_uint8),
        ("unused", ctypes.c_uint8 * 2),
        ("operation", ctypes.c_char * 16),
        ("dtype", ctypes.c_char * 16),
        ("name", ctypes.c_char * 64),
        ("detail", ctypes.c_char * 64),
        ("error", ctypes.c_char * 64),
    ]


class EventFields(TypedDict):
    """The fields of `Event` in core/trace/event.h that are the same in all readings."""

    sequence: int
    communicator: int
    key: int
    number: int
    signature: int
    bytes: int
    elements: int
    submitted: int
    started: int
    ended: int
    rank: int
    size: int
    peer: int
    operation: str
    dtype: str
    name: str
    detail: str
    error: str


class RecordedEvent(EventFields):
    """An event as an object for JSON."""

    kind: str
    state: str


class RingEvent(EventFields):
    """An event as the ring holds it."""

    kind: int
    state: int


_FORMATS = {ctypes.c_uint64: "Q", ctypes.c_int32: "i", ctypes.c_uint8: "B"}


def _format(kind: Any) -> str:
    """Returns the format of a field of `_Event`, as in Python's `struct` with standard sizes."""
    if kind in _FORMATS:
        return _FORMATS[kind]
    return f"{kind._length_}{'s' if kind._type_ is ctypes.c_char else 'x'}"


_NAMES = [name for name, *_ in _Event._fields_ if name != "unused"]
_C = library.CFunctions(
    "tfdist_recorder_",
    plain={"end": [ctypes.c_uint64, ctypes.c_char_p]},
    returning={
        "last": ([], ctypes.c_uint64),
        "read": (
            [
                ctypes.c_uint64,
                ctypes.POINTER(_Event),
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_uint64),
                ctypes.POINTER(ctypes.c_uint64),
            ],
            ctypes.c_size_t,
        ),
        "begin": ([ctypes.c_char_p, ctypes.c_char_p], ctypes.c_uint64),
        "failure_descriptor": ([], ctypes.c_int),
        "take_failures": ([], ctypes.c_uint32),
    },
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """Events of the ring.

    Attributes:
      events: in the order of their submission, as objects for JSON: the fields of `Event` in
        core/trace/event.h. Times are nanoseconds of the steady clock (`time.monotonic_ns`), 0 if it
        has not happened yet.
      next: the cursor of the next reading.
      lost: the number of events from the cursor on that later ones have overwritten.
    """

    events: list[RecordedEvent]
    next: int
    lost: int


def read(cursor: int = 1, limit: int = RING_EVENTS) -> Reading:
    """Reads events of this process.

    Args:
      cursor: the sequence number of the first event to read; they count from 1.
      limit: the number of events to read at most.
    """
    raw = (_Event * limit)()
    after, lost = ctypes.c_uint64(), ctypes.c_uint64()
    count = _C.read(cursor, raw, limit, ctypes.byref(after), ctypes.byref(lost))
    return Reading([_as_dict(event) for event in raw[:count]], after.value, lost.value)


class RingReader:
    """Reads events as the records that the ring holds, without an object for each.

    Args:
      limit: the number of events that one call reads at most.

    Attributes:
      layout: the fields of a record in their order, each with its format as in Python's `struct`
        with standard sizes.
      record_bytes: the size of a record.
      ring_events: the number of events that the ring holds.
    """

    layout = [(field[0], _format(field[1])) for field in _Event._fields_]
    record_bytes = ctypes.sizeof(_Event)
    ring_events = RING_EVENTS

    def __init__(self, limit: int = RING_EVENTS) -> None:
        self._limit = limit
        self._bytes = np.zeros((limit, self.record_bytes), np.uint8)
        self._raw = self._bytes.ctypes.data_as(ctypes.POINTER(_Event))
        self._next, self._lost = ctypes.c_uint64(), ctypes.c_uint64()
        self._sequences = self._column("sequence", np.uint64)
        self._states = self._column("state", np.uint8)

    def read(self, cursor: int, limit: int | None = None) -> RingRecords:
        """Reads events of this process; the next call overwrites the result.

        Args:
          cursor, limit: as for the function `read`.
        """
        limit = self._limit if limit is None else min(limit, self._limit)
        after, lost = ctypes.byref(self._next), ctypes.byref(self._lost)
        count = _C.read(cursor, self._raw, limit, after, lost)
        has_ended = self._states[:count] >= _STATES.index("done")
        return RingRecords(
            self._bytes[:count],
            self._sequences[:count],
            has_ended,
            self._next.value,
            self._lost.value,
        )

    def _column(self, name: str, kind: type[np.generic]) -> np.ndarray:
        start = getattr(_Event, name).offset
        return self._bytes[:, start : start + np.dtype(kind).itemsize].view(kind)[:, 0]


@dataclasses.dataclass(frozen=True)
class RingRecords:
    """Events of the ring as records.

    Attributes:
      records: uint8[events, record_bytes], in the order of their submission.
      sequences: uint64[events], the events' sequence numbers.
      has_ended: bool[events], whether the event has ended; another one must be read again.
      next, lost: as in `Reading`.
    """

    records: np.ndarray
    sequences: np.ndarray
    has_ended: np.ndarray
    next: int
    lost: int


def last() -> int:
    """Returns the sequence number of the latest event of this process, 0 before the first."""
    found: int = _C.last()
    return found


@contextlib.contextmanager
def span(name: str, detail: str = "") -> Iterator[None]:
    """Records what the body does, with its times, and its exception if it raises one.

    Records nothing as long as nothing else has loaded the op library.

    Args:
      name: the body's work, at most 64 bytes.
      detail: the object of the work, at most 64 bytes.

    Example:

    ```python
    with events.span("checkpoint", "/tmp/backup"):
        save()
    ```
    """
    if not is_loaded():
        yield
        return
    event = _C.begin(name.encode(), detail.encode())
    try:
        yield
    except GeneratorExit:  # the body yields, and the caller has stopped
        _C.end(event, b"")
        raise
    except BaseException as error:
        _C.end(event, f"{type(error).__name__}: {error}".encode())
        raise
    _C.end(event, b"")


def is_loaded() -> bool:
    """Whether this process has loaded the op library, without which it has no events."""
    return library.c_api.cache_info().currsize > 0


def failure_descriptor() -> int:
    """Returns a descriptor that is readable when collectives or requests have failed."""
    found: int = _C.failure_descriptor()
    return found


def take_failures() -> set[str]:
    """Returns the kinds of failures since the last call: "timeout", "mismatch", "lost"."""
    mask = _C.take_failures()
    return {name for bit, name in enumerate(("timeout", "mismatch", "lost")) if mask >> bit & 1}


def _as_dict(event: _Event) -> RecordedEvent:
    fields: Any = {name: getattr(event, name) for name in _NAMES}
    for name in ("operation", "dtype", "name", "detail", "error"):
        fields[name] = fields[name].decode(errors="replace")
    fields["kind"] = _KINDS[event.kind]
    fields["state"] = _STATES[event.state]
    return fields
