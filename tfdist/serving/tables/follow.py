"""The work of the command `tfdist ps follow`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from tfdist.config.cluster import tf_config_text
from tfdist.config.printing import printable
from tfdist.control.client import UnreachableError
from tfdist.errors import CheckpointError, ClusterConfigError, TfdistError
from tfdist.serving.tables.publication import Publication
from tfdist.serving.tables.publisher import Publisher
from tfdist.serving.tables.training import SnapshotFolder, Training

_log = logging.getLogger("tfdist.serving")
_COMMAND = "tfdist ps follow"
_LOOK_EVERY = 1.0  # s, for the end of the job
_LAST_SECONDS = 3.0  # from the end of the first server to the end of the job
# These may pass: a server restarts, a disk gets room, a newer snapshot replaces a damaged one.
_PASSING = (CheckpointError, UnreachableError, ClusterConfigError, OSError, tf.errors.OpError)


def follow(
    folder: str,
    every: float,
    job: Path | None,
    cluster: str | None,
    checkpoint_dir: str | None,
) -> int:
    """Publishes a training's tables until the job ends, or a signal.

    Args:
      folder: where they are published.
      every: seconds between two publications.
      job: a job file.
      cluster: a TF_CONFIG of the job.
      checkpoint_dir: the training's; without `job` and `cluster` its snapshots are taken as they
        come, and none is asked for.

    Returns:
      The exit code.
    """
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    training: Training | SnapshotFolder | None = None
    try:
        if job is None and cluster is None and checkpoint_dir is not None:
            training = SnapshotFolder(checkpoint_dir)
        else:
            training = Training(_COMMAND, job, cluster or tf_config_text(), checkpoint_dir)
        return Following(training, Publisher(folder), job).run(every)
    except ClusterConfigError as error:
        return _failed(error, 2)
    except (TfdistError, UnreachableError, OSError, tf.errors.OpError) as error:
        return _failed(error, 1)
    finally:
        if training is not None:
            training.close()


class Following:
    """Publishes a training's snapshots again and again.

    Args:
      training: gives snapshots.
      publisher: publishes them.
      job: the job file, which the launcher removes when the job ends; `None` if there is none.
    """

    def __init__(
        self, training: Training | SnapshotFolder, publisher: Publisher, job: Path | None
    ) -> None:
        self._training = training
        self._publisher = publisher
        self._job = job
        self._stop = threading.Event()
        self._received: list[int] = []
        self._told = ""

    def run(self, every: float) -> int:
        """Publishes every so many seconds; the first time, an error ends it.

        Returns:
          0 when the job has ended and its last snapshot is published, 1 if that failed, else 128 +
          the signal's number.
        """
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        previous = {number: signal.signal(number, self._end) for number in numbers}
        try:
            due = time.monotonic()
            self._publish(self._training.snapshot)
            while self._waits(due := max(due + every, time.monotonic())):
                self._try_to_publish()
            return 128 + self._received[0] if self._received else self._publish_last()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Ends `run`, which another thread runs."""
        self._stop.set()

    def _end(self, number: int, frame: object) -> None:
        self._received.append(number)
        self._stop.set()

    def _waits(self, due: float) -> bool:
        """Waits until a time; returns whether the job and this following still run then."""
        while not self._has_ended():
            left = due - time.monotonic()
            if self._stop.wait(max(0.0, min(left, _LOOK_EVERY))):
                return False
            if left <= _LOOK_EVERY:
                return True
        return False

    def _has_ended(self) -> bool:
        return self._job is not None and not self._job.exists()

    def _is_ending(self) -> bool:
        """Whether the job, or this following, ends within seconds: servers end before the job."""
        return self._job is not None and not self._waits(time.monotonic() + _LAST_SECONDS)

    def _try_to_publish(self) -> None:
        try:
            self._publish(self._training.snapshot)
        except _PASSING as error:
            text = error.message if isinstance(error, tf.errors.OpError) else str(error)
            if text != self._told and not self._is_ending():
                _log.error("%s: nothing is published until this is over: %s", _COMMAND, text)
            self._told = text
        else:
            self._told = ""

    def _publish_last(self) -> int:
        """Publishes what the servers have written at their end; returns the exit code."""
        if not self._has_ended():  # `stop` was called
            return 0
        try:
            self._publish(self._training.last)
        except _PASSING as error:
            return _failed(error, 1)
        return 0

    def _publish(self, snapshot: Callable[[], Publication]) -> None:
        began = time.monotonic()
        done = self._publisher.publish(snapshot())
        if done is not None:
            _log.warning(
                "%s: published %d: %s, %d rows, %.1f MB in %.2f s",
                _COMMAND,
                done.number,
                "whole" if done.is_whole else "changes",
                done.rows,
                done.bytes / 1e6,
                time.monotonic() - began,
            )


def _failed(error: Exception, code: int) -> int:
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    print(f"{_COMMAND}: error: {printable(text)}", file=sys.stderr)
    return code
