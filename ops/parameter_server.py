"""The Python face of a parameter server's store."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.parameter_client import DTYPES
from tfdist.ops.server_records import ServerEvent, ServerImage, ServerStats, TraceEvent

_HANDLE = ctypes.c_int64
_NUMPY_DTYPES = {number: dtype.as_numpy_dtype for dtype, number in DTYPES.items()}
_MODES = {"async": 1, "sync": 2, "ssp": 3}
_COMPENSATIONS = {None: 0, "dc-asgd": 1, "adadelay": 2}
_EVENTS = {1: "came", 2: "left", 3: "lost", 4: "log"}
_TRACE_KINDS = {1: "pull", 2: "push", 3: "drop", 4: "close"}
_TEXT_BYTES = 1024
_THREADS = 2


class _Options(ctypes.Structure):
    """Laid out as `tfdist_ps_server_options` in core/ps/server_c_api.cc."""

    _fields_ = [
        ("index", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("num_aggregate", ctypes.c_int32),
        ("staleness", ctypes.c_int32),
        ("hogwild", ctypes.c_int32),
        ("compensation", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("has_chief", ctypes.c_int32),
        ("worker_timeout_seconds", ctypes.c_double),
        ("start_timeout_seconds", ctypes.c_double),
        ("compensation_lambda", ctypes.c_double),
        ("trace_events", ctypes.c_uint64),
    ]


class _Stats(ctypes.Structure):
    """Laid out as `ServerStats` in core/ps/server.h."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(ServerStats)]


class _Event(ctypes.Structure):
    """Laid out as `TraceEvent` in core/ps/server.h."""

    _fields_ = [
        ("nanoseconds", ctypes.c_uint64),
        ("worker", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("clock", ctypes.c_uint64),
        ("slowest", ctypes.c_uint64),
    ]


_INT = ctypes.POINTER(ctypes.c_int)
_LONG = ctypes.POINTER(ctypes.c_uint64)
_POINTER = ctypes.POINTER(ctypes.c_void_p)
_C = library.CFunctions(
    "tfdist_ps_server_",
    checked={
        "create": [ctypes.POINTER(_Options), ctypes.c_int, ctypes.POINTER(_HANDLE), _INT],
        "restore_entry": [
            _HANDLE,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_uint64,
        ],
        "restore_progress": [_HANDLE, _LONG, ctypes.c_uint64],
        "start": [_HANDLE, ctypes.c_char_p],
        "freeze": [_HANDLE, ctypes.POINTER(_HANDLE)],
    },
    plain={"stats": [_HANDLE, ctypes.POINTER(_Stats)], "close": [_HANDLE]},
    returning={
        "incarnation": ([_HANDLE], ctypes.c_uint64),
        "wait_event": (
            [_HANDLE, ctypes.c_double, _INT, _INT, ctypes.c_char_p, ctypes.c_size_t],
            ctypes.c_int,
        ),
        "trace": ([_HANDLE, ctypes.POINTER(_Event), ctypes.c_uint64], ctypes.c_uint64),
    },
)
_IMAGE = library.CFunctions(
    "tfdist_ps_image_",
    plain={"free": [_HANDLE]},
    returning={
        "count": ([_HANDLE], ctypes.c_uint64),
        "entry": (
            [
                _HANDLE,
                ctypes.c_uint64,
                ctypes.POINTER(ctypes.c_char_p),
                _INT,
                _LONG,
                _POINTER,
                _LONG,
            ],
            ctypes.c_bool,
        ),
        "progress": ([_HANDLE, ctypes.POINTER(_LONG), _LONG], ctypes.c_bool),
    },
)


class ParameterServer:
    """Holds shards of variables, applies what workers push and sends what they pull.

    It listens from its creation on; `start` lets workers in.

    Args:
      index: which server of the job it is.
      config: a `tfdist.ps.config.PsConfig`, or anything with its attributes.
      port: TCP port of the data connections; 0 lets the kernel choose.
      has_chief: messages call rank 0 the chief, and rank 1 worker 0.

    Raises:
      tf.errors.UnavailableError: the port cannot be bound.
    """

    def __init__(self, index: int, config: Any, port: int = 0, has_chief: bool = False) -> None:
        handle, bound_port = _HANDLE(), ctypes.c_int()
        options = _Options(
            index=index,
            mode=_MODES[config.mode],
            workers=config.workers,
            num_aggregate=config.num_aggregate,
            staleness=config.staleness,
            hogwild=config.hogwild,
            compensation=_COMPENSATIONS[config.compensation],
            threads=_THREADS,
            has_chief=has_chief,
            worker_timeout_seconds=config.worker_timeout,
            start_timeout_seconds=config.start_timeout,
            compensation_lambda=config.compensation_lambda,
            trace_events=config.trace_events,
        )
        _C.create(ctypes.byref(options), port, ctypes.byref(handle), ctypes.byref(bound_port))
        self._handle = handle.value
        self._trace_events = config.trace_events
        self.port = bound_port.value

    @property
    def incarnation(self) -> int:
        """A random number that tells this store from one that was here before."""
        return _C.incarnation(self._handle)

    def restore(self, image: ServerImage) -> None:
        """Takes what a server held, before `start`.

        Raises:
          tf.errors.InvalidArgumentError: it is not what `freeze` gives.
        """
        for name, array in image.shards.items():
            array = np.ascontiguousarray(array)
            _C.restore_entry(
                self._handle,
                name.encode(),
                DTYPES[tf.as_dtype(array.dtype)],
                array.size,
                array.ctypes.data,
                array.nbytes,
            )
        progress = np.ascontiguousarray(image.progress, np.uint64)
        _C.restore_progress(self._handle, progress.ctypes.data_as(_LONG), progress.size)

    def start(self, token: bytes) -> None:
        """Lets in workers that present these 16 bytes and the `incarnation`."""
        _C.start(self._handle, token)

    @contextlib.contextmanager
    def freeze(self) -> Iterator[ServerImage]:
        """Gives what the server holds now, between two pushes; it goes on meanwhile.

        The arrays are the server's memory: they are not to be kept.
        """
        image = _HANDLE()
        _C.freeze(self._handle, ctypes.byref(image))
        try:
            yield ServerImage(_shards(image), _progress(image))
        finally:
            _IMAGE.free(image)

    def wait_for_event(self, seconds: float) -> ServerEvent | None:
        """Returns what happens next, or `None` after `seconds`."""
        kind, worker = ctypes.c_int(), ctypes.c_int()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        found = _C.wait_event(
            self._handle, seconds, ctypes.byref(kind), ctypes.byref(worker), text, _TEXT_BYTES
        )
        if found != 1:
            return None
        return ServerEvent(_EVENTS[kind.value], worker.value, text.value.decode(errors="replace"))

    def stats(self) -> ServerStats:
        """The counters, also while workers are served."""
        raw = _Stats()
        _C.stats(self._handle, ctypes.byref(raw))
        return ServerStats(*(getattr(raw, field.name) for field in dataclasses.fields(ServerStats)))

    def trace(self) -> list[TraceEvent]:
        """The latest events, oldest first, as many as the configuration asked for."""
        events = (_Event * self._trace_events)()
        count = _C.trace(self._handle, events, self._trace_events)
        return [
            TraceEvent(e.nanoseconds / 1e9, e.worker, _TRACE_KINDS[e.kind], e.clock, e.slowest)
            for e in events[:count]
        ]

    def close(self) -> None:
        """Closes all connections and frees what is held. May be called again."""
        _C.close(self._handle)


def _shards(image: ctypes.c_int64) -> dict[str, np.ndarray]:
    shards = {}
    name, data = ctypes.c_char_p(), ctypes.c_void_p()
    dtype, elements, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    for i in range(_IMAGE.count(image)):
        _IMAGE.entry(
            image,
            i,
            ctypes.byref(name),
            ctypes.byref(dtype),
            ctypes.byref(elements),
            ctypes.byref(data),
            ctypes.byref(size),
        )
        memory = (ctypes.c_uint8 * size.value).from_address(data.value) if size.value else b""
        shards[name.value.decode()] = np.frombuffer(memory, _NUMPY_DTYPES[dtype.value])
    return shards


def _progress(image: ctypes.c_int64) -> np.ndarray:
    numbers, count = _LONG(), ctypes.c_uint64()
    _IMAGE.progress(image, ctypes.byref(numbers), ctypes.byref(count))
    # Copied: this is small, and may be kept.
    return np.array(numbers[: count.value], np.uint64)
