"""Requests of one kind that come together are answered by one call of the model.

A request starts at once if no call of its kind runs. Else it waits until that call has ended, until
the batch is full or until its delay is over, whichever comes first; all requests that wait then are
one batch. So a server with little work adds no delay, and a busy one has large batches:

    call 1  [ a ]
    call 2        [ b c d ]       b, c and d came while a was computed
    call 3                  [ e ]

Requests are of one kind if they ask the same signature, and their inputs have the same types and
the same shapes except the number of rows. Nothing is padded. The first request of a batch calls the
model in its own thread, for all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import grpc
import numpy as np
import tensorflow as tf

from tfdist.serving.model_server.call_error import CallError

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], dict[str, np.ndarray]]
Kind = str
_log = logging.getLogger("tfdist.serving")
# Errors that no request has caused, such as a server of tables that is gone.
_OF_ALL = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.ResourceExhaustedError,
    MemoryError,
)


class _Batch:
    """Requests that wait for one call.

    Args:
      lock: guards it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.requests: list[_Request] = []
        self.rows = 0
        self.is_closed = False


class _Request:
    def __init__(self, inputs: Arrays, rows: int) -> None:
        self.inputs = inputs
        self.rows = rows
        self.answered = threading.Event()
        self.outputs: dict[str, np.ndarray] | None = None
        self.error: Exception | None = None


class _Line:
    """The calls of one kind: how many run, how many there are, and the batch with room."""

    def __init__(self) -> None:
        self.running = 0
        self.calls = 0
        self.waiting: _Batch | None = None


class Batcher:
    """Joins requests for one version of a model.

    Args:
      max_rows: of a batch; a request with more is answered alone.
      delay: the longest time (s) for which a request waits for others.
      on_batch: is told the number of rows of each call.
    """

    def __init__(
        self, max_rows: int, delay: float, on_batch: Callable[[int], None] = lambda rows: None
    ) -> None:
        self._max_rows = max_rows
        self._delay = delay
        self._on_batch = on_batch
        self._lock = threading.Lock()
        self._lines: dict[tuple, _Line] = {}
        # Signatures whose outputs have not one row for each row of the inputs.
        self._alone: set[Kind] = set()

    def run(self, kind: Kind, inputs: Arrays, run: Run, deadline: float) -> dict[str, np.ndarray]:
        """Answers a request, together with others of its kind.

        Args:
          kind: the name of the signature.
          inputs: arrays with at least one dimension.
          run: calls the model; the same function for each request of the kind.
          deadline: the time of `time.monotonic` after which the client does not wait any more.

        Returns:
          The outputs of its own rows.

        Raises:
          CallError: the deadline is over.
          Exception: the model's.
        """
        rows = {len(values) for values in inputs.values()}
        if len(rows) != 1 or kind in self._alone or (count := rows.pop()) >= self._max_rows:
            return run(inputs)
        shapes = tuple((n, v.dtype.str, v.shape[1:]) for n, v in sorted(inputs.items()))
        request = _Request(inputs, count)
        with self._lock:
            line = self._lines.setdefault((kind, shapes), _Line())
            batch, is_first = self._joined(line, request)
            if is_first:
                line.calls += 1
                self._wait_for_turn(line, batch, deadline)
        if not is_first:
            return self._result(request, deadline)
        try:
            self._call(kind, batch, run)
        finally:
            with self._lock:
                line.running -= 1
                line.calls -= 1
                if line.waiting is not None:
                    line.waiting.changed.notify()
                if not line.calls:
                    del self._lines[kind, shapes]
        return self._result(request, deadline)

    def _joined(self, line: _Line, request: _Request) -> tuple[_Batch, bool]:
        """Adds a request to the waiting batch if it has room; returns whether it is the first."""
        batch = line.waiting
        is_first = batch is None or batch.rows + request.rows > self._max_rows
        if is_first:
            if batch is not None:
                batch.is_closed = True
                batch.changed.notify()
            batch = line.waiting = _Batch(self._lock)
        assert batch is not None
        batch.requests.append(request)
        batch.rows += request.rows
        if batch.rows == self._max_rows:
            batch.is_closed = True
            line.waiting = None
            batch.changed.notify()
        return batch, is_first

    def _wait_for_turn(self, line: _Line, batch: _Batch, deadline: float) -> None:
        ends = min(time.monotonic() + self._delay, deadline)
        while line.running and not batch.is_closed:
            left = ends - time.monotonic()
            if left <= 0:
                break
            batch.changed.wait(left)
        batch.is_closed = True
        if line.waiting is batch:
            line.waiting = None
        line.running += 1

    def _call(self, kind: Kind, batch: _Batch, run: Run) -> None:
        requests = batch.requests
        self._on_batch(batch.rows)
        try:
            if len(requests) > 1 and self._call_together(batch, run):
                return
            if len(requests) > 1:
                self._alone.add(kind)
        except _OF_ALL as error:
            for request in requests:
                request.error = error
                request.answered.set()
            return
        except Exception as error:
            # One request may have a value that the model refuses: the others are not to fail.
            _log.debug("a batch of %d requests has failed: %s", len(requests), error)
        for request in requests:
            _answer_alone(request, run)

    def _call_together(self, batch: _Batch, run: Run) -> bool:
        """Answers a batch by one call; returns False if the outputs cannot be divided."""
        requests = batch.requests
        names = requests[0].inputs
        joined = {name: np.concatenate([r.inputs[name] for r in requests]) for name in names}
        outputs = run(joined)
        if any(v.ndim == 0 or len(v) != batch.rows for v in outputs.values()):
            return False
        begin = 0
        for request in requests:
            end = begin + request.rows
            request.outputs = {name: values[begin:end] for name, values in outputs.items()}
            request.answered.set()
            begin = end
        return True

    def _result(self, request: _Request, deadline: float) -> dict[str, np.ndarray]:
        left = max(0.0, deadline - time.monotonic())
        if not request.answered.wait(min(left, threading.TIMEOUT_MAX)):
            raise CallError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the request's deadline ended before its answer"
            )
        if request.error is not None:
            raise request.error
        assert request.outputs is not None
        return request.outputs


def _answer_alone(request: _Request, run: Run) -> None:
    try:
        request.outputs = run(request.inputs)
    except Exception as error:
        request.error = error
    request.answered.set()
