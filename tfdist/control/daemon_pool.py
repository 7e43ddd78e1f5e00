"""A pool of threads that serves until the interpreter has ended."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from concurrent import futures


class DaemonPool(futures.Executor):
    """Threads for handlers, which keep serving while the interpreter shuts down.

    The standard pool refuses work before `atexit` functions run, but exit barriers are served then.
    Threads are started on demand and kept.

    Args:
      max_threads: upper bound; each waiting rank holds one.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._changed = threading.Condition()
        self._work: collections.deque[tuple] = collections.deque()
        self._threads = 0
        self._idle = 0
        self._stopped = False

    def submit(self, fn: Callable, /, *args: object, **kwargs: object) -> futures.Future:
        """Queues a call; raises RuntimeError after `shutdown`."""
        future: futures.Future = futures.Future()
        with self._changed:
            if self._stopped:
                raise RuntimeError("the pool was shut down")
            self._work.append((future, fn, args, kwargs))
            if self._idle < len(self._work) and self._threads < self._max_threads:
                self._start_thread()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Makes the threads end once the queue is empty; does not wait for them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="tfdist-control", daemon=True).start()
        except RuntimeError:
            # Newer Pythons start no thread during shutdown; existing threads suffice.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._stopped)
                self._idle -= 1
                if not self._work:
                    return
                future, fn, args, kwargs = self._work.popleft()
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: B036 - the future's owner gets it
                future.set_exception(error)
