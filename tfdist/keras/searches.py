"""The workers of a KerasTuner search: all make the same trials, and rank 0 writes the files.

Each worker has an oracle of its own. With the same files at the beginning, the same seed and the
same results the oracles decide the same, so nothing is sent but a digest of each decision, which
shows if they do not. A worker that joins an elastic job makes the same decisions again, from the
files that the founders have begun with and the results that they have had.
"""

from __future__ import annotations

import abc
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.config.validation import show
from tfdist.elastic.job import ElasticJob, LeftBehindError, Unit
from tfdist.elastic.values import broadcast_bytes
from tfdist.errors import TfdistError
from tfdist.job.job import Job
from tfdist.keras.elastic_records import check_subject, ends_if_wrong, kept_record, restored
from tfdist.keras.project_files import ProjectFiles, write_whole

_log = logging.getLogger("tfdist.elastic")
_CALL = "the beginning of a search"
_DECISION = "a decision of a search"
_SAVE = "the checkpoint of a trial"


class SearchWorkers(abc.ABC):
    """The workers of this process's job, and the files of their projects.

    Args:
      files: the files of this process.
    """

    def __init__(self, files: ProjectFiles) -> None:
        self.files = files

    @property
    @abc.abstractmethod
    def leads(self) -> bool:
        """Whether this process is rank 0, which writes."""

    @property
    def is_member(self) -> bool:
        """Whether this process is at the same place of the program as the other workers."""
        return True

    @abc.abstractmethod
    def begin(self, subject: dict[str, str], texts: dict[str, str]) -> dict[str, str]:
        """Waits until all workers have read a project's files.

        Args:
          subject: the values that must be the same on all workers, by field.
          texts: the files that this worker has read, by their paths in the project.

        Returns:
          The files with which all workers begin.

        Raises:
          TfdistError: a field or a file differs from rank 0's; names it.
          tf.errors.OpError: a worker was lost.
        """

    @abc.abstractmethod
    def meet(self, subject: dict[str, str]) -> None:
        """Waits until all workers have come here, and rank 0 has written its files.

        Args:
          subject: the values that must be the same on all workers, by field.

        Raises the errors of `begin`.
        """

    @abc.abstractmethod
    def save(self, path: str, write: Callable[[str], None]) -> None:
        """Saves a model at the end of an epoch; all workers call it together.

        Args:
          path: the file, which is written as a whole or not at all.
          write: writes it to the path that it is given.

        Raises:
          tf.errors.OpError: a worker was lost.
        """

    @abc.abstractmethod
    def of_rank_0(self, value: Any, what: str) -> Any:
        """Returns rank 0's value, which JSON can hold, where workers may have different ones."""

    @abc.abstractmethod
    def has_failed(self) -> bool:
        """Whether the connections to the others are broken."""


class FixedWorkers(SearchWorkers):
    """The workers of a job that is not elastic.

    Args:
      files: the files of this process.
      job: the connections to the others.
    """

    def __init__(self, files: ProjectFiles, job: Job) -> None:
        super().__init__(files)
        self._job = job

    @property
    def leads(self) -> bool:
        """See `SearchWorkers`."""
        return self._job.communicator.rank == 0

    def begin(self, subject: dict[str, str], texts: dict[str, str]) -> dict[str, str]:
        """See `SearchWorkers`."""
        self.meet(subject | _in_words(texts))
        return texts

    def meet(self, subject: dict[str, str]) -> None:
        """See `SearchWorkers`."""
        _compare(subject, self._job.communicator, self._job.cluster.task_name)
        self.files.settle()

    def save(self, path: str, write: Callable[[str], None]) -> None:
        """See `SearchWorkers`."""
        if self.leads:
            write_whole(path, write)
            return
        # To read some of a model's variables needs all workers.
        with tempfile.TemporaryDirectory() as scratch:
            write(os.path.join(scratch, os.path.basename(path)))

    def of_rank_0(self, value: Any, what: str) -> Any:
        """See `SearchWorkers`."""
        content = json.dumps(value, default=lambda each: np.asarray(each).tolist()).encode()
        return json.loads(broadcast_bytes(content, self._job.communicator, 0, what))

    def has_failed(self) -> bool:
        """See `SearchWorkers`."""
        return self._job.communicator.failed()


class ElasticSearchWorkers(SearchWorkers):
    """The members of an elastic job, or a newcomer.

    Args:
      files: the files of this process.
      job: the members.
    """

    def __init__(self, files: ProjectFiles, job: ElasticJob) -> None:
        super().__init__(files)
        self._job = job

    @property
    def leads(self) -> bool:
        """See `SearchWorkers`."""
        return self._job.is_leader

    @property
    def is_member(self) -> bool:
        """See `SearchWorkers`."""
        return not self._job.is_newcomer

    def begin(self, subject: dict[str, str], texts: dict[str, str]) -> dict[str, str]:
        """See `SearchWorkers`."""
        job = self._job
        with job.calls.call(_CALL):
            if not job.is_newcomer:
                self.meet(subject | _in_words(texts))
            if not job.is_newcomer:
                rest = {"files": texts}
                record = kept_record(job.records, _CALL, subject, rest, [], job.calls)
                job.calls.end(record)
                return texts
            record = job.calls.record_when_ended()
            check_subject(job, record, _CALL, subject)
            with ends_if_wrong(job, record):
                files = restored(job.records, record, [])["files"]
            job.calls.end(record)
            return files

    def meet(self, subject: dict[str, str]) -> None:
        """See `SearchWorkers`. A newcomer meets no other worker before it has joined."""
        job = self._job

        def compare() -> None:
            # Also where rank 0 was lost, and this process has come in its place.
            if job.is_leader:
                self.files.finish()
            _compare(subject, job.communicator, job.cluster.task_name)

        if job.is_newcomer:
            return
        try:
            job.run(Unit(_DECISION, compare))
        except LeftBehindError as error:
            # The members' records have all that this process needs to join them again.
            _log.warning("%s; joining them again", error)
            return
        self.files.settle()

    def save(self, path: str, write: Callable[[str], None]) -> None:
        """See `SearchWorkers`. If rank 0 is lost meanwhile, its successor saves."""
        job = self._job

        def save() -> None:
            if job.is_leader:
                write_whole(path, write)
            with tf.device("/device:CPU:0"):
                ops.all_reduce(tf.constant(job.units), job.communicator, "max", label=_SAVE)

        if not job.is_newcomer and not job.ends:
            # A member that leaves after the step is still here.
            job.run(Unit(_SAVE, save, lets_leave=False))
        elif job.is_leader:
            write_whole(path, write)

    def of_rank_0(self, value: Any, what: str) -> Any:
        """See `SearchWorkers`. The members have the same values, which `meet` compares."""
        del what
        return value

    def has_failed(self) -> bool:
        """See `SearchWorkers`."""
        return self._job.communicator.failed()


def _in_words(texts: Mapping[str, str]) -> dict[str, str]:
    return {f"file {name}": _digest(text) for name, text in sorted(texts.items())}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _compare(subject: dict[str, str], communicator: ops.Communicator, task: str) -> None:
    """Raises TfdistError on each worker whose subject is another one than rank 0's."""
    text = json.dumps(subject)
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int64)
    with tf.device("/device:CPU:0"):
        rows = ops.all_gather(tf.constant(own[None]), communicator, label=_DECISION).numpy()
    if (rows == rows[0]).all():
        return
    expected = json.loads(broadcast_bytes(text.encode(), communicator, 0, _DECISION))
    for field in dict.fromkeys((*expected, *subject)):
        if expected.get(field) != subject.get(field):
            raise TfdistError(
                f"{task}: expected the same search on all workers, but {field!r} differs: expected "
                f"{show(expected.get(field))} as on rank 0, received {show(subject.get(field))}. "
                "All workers run the same program, give the tuner the same directory, which they "
                "share, and a seed, and judge a trial by results of fit, evaluate or predict"
            )
