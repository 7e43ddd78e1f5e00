"""The backups of tf_keras's `BackupAndRestore`: the newest one, and the one before it.

Each is a checkpoint of TensorFlow, which has a checksum of each value. In an elastic job its name
has the generation and a part of its process's own, so that no two processes write the same files:

    ckpt-5                         number 5
    ckpt-JOB.7.RANDOM-5            number 5, of generation 7 of a job

The newest one has the highest number, then the highest generation. A process that was stopped while
it wrote number 5 in generation 6 may complete it at any time: its successor also has number 5, or a
higher one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable

import tensorflow as tf

from tfdist.atomic_files import Term

_log = logging.getLogger("tfdist")
_NAME = re.compile(r"ckpt-(?:([0-9a-f]{8})\.(\d+)\.[0-9a-f]{8}-)?(\d+)(?=\D|$)")
_KEPT = 2
# Seconds without a write, after which no process writes a file any more.
_ABANDONED = 3600.0


@dataclasses.dataclass(frozen=True, order=True)
class _Backup:
    number: int
    generation: int
    job: str
    name: str

    @classmethod
    def of(cls, name: str) -> _Backup | None:
        """The backup that a file belongs to; `None` if it belongs to none."""
        found = _NAME.match(name)
        if found is None:
            return None
        return cls(int(found[3]), int(found[2] or 0), found[1] or "", found[0])

    def is_after(self, job: str, generation: int) -> bool:
        """Whether it is of a later generation of a job."""
        return bool(job) and self.job == job and self.generation > generation


class Backups:
    """Stands for the `tf.train.CheckpointManager` of a folder of backups.

    Args:
      checkpoint: the saved objects.
      directory: the folder.
      term: returns the generation in which this process writes; `None` in a job that is not
        elastic.

    Attributes:
      checkpoint: the saved objects.
      directory: the folder.
    """

    def __init__(
        self, checkpoint: tf.train.Checkpoint, directory: str, term: Callable[[], Term | None]
    ) -> None:
        self.checkpoint = checkpoint
        self.directory = directory
        self._term = term
        self._damaged: set[str] = set()
        self._random = secrets.token_hex(4)

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest backup; `None` if there is none."""
        complete = self._complete()
        return self._path(complete[-1]) if complete else None

    def save(self) -> str | None:
        """Saves a backup, and removes backups before the former one.

        Returns:
          Its path; `None` if the members of an elastic job have continued without this process.

        Raises:
          tf.errors.OpError: the file system refused; nothing of the backup is left.
        """
        if self.is_superseded():
            return None
        job, generation = self._writer()
        complete = self._complete()
        number = complete[-1].number + 1 if complete else 1
        own = f"ckpt-{job}.{generation}.{self._random}-{number}" if job else f"ckpt-{number}"
        self.checkpoint.save_counter.assign(number)
        try:
            self.checkpoint.write(os.path.join(self.directory, own))
        except tf.errors.OpError:
            if self.is_superseded():
                return None
            self._remove({own})
            raise
        if self.is_superseded():
            self._remove({own})
            return None
        kept = [b for b in self._complete() if b.name not in self._damaged][-_KEPT:]
        # For readers that do not know of generations.
        tf.compat.v1.train.update_checkpoint_state(
            self.directory, self._path(kept[-1]), [self._path(backup) for backup in kept]
        )
        found = {backup for name in self._names() if (backup := _Backup.of(name)) is not None}
        self._remove({b.name for b in found if b not in kept and not self._may_be_written(b)})
        return self._path(kept[-1])

    def restore_or_initialize(self) -> str | None:
        """Restores the newest backup, or the one before it if that is damaged.

        Returns:
          Its path; `None` if there is no backup.

        Raises:
          ValueError: there are backups, and none is whole; names all.
        """
        problems: list[str] = []
        for backup in reversed(self._complete()):
            path = self._path(backup)
            problem = _problem_with(path)
            if problem is None:
                if problems:
                    _log.warning(
                        "%s; fit continues from %s, the backup before it", "; ".join(problems), path
                    )
                self.checkpoint.restore(path)
                return path
            self._damaged.add(backup.name)
            problems.append(problem)
        if problems:
            raise ValueError(
                f"{'; '.join(problems)}. There is no whole backup in {self.directory}; remove it "
                "to begin anew"
            )
        return None

    def is_superseded(self) -> bool:
        """Whether a later generation of this process's elastic job has saved a backup."""
        job, generation = self._writer()
        later = [backup for backup in self._complete() if backup.is_after(job, generation)]
        if later:
            _log.warning(
                "%s is left as it is: the members of this job have saved %s in generation %d, "
                "after they had continued without this process, which was in generation %d",
                *(self.directory, later[-1].name, later[-1].generation, generation),
            )
        return bool(later)

    def _writer(self) -> tuple[str, int]:
        term = self._term()
        if term is None:
            return "", 0
        return hashlib.sha256(term.job.encode()).hexdigest()[:8], term.number

    def _path(self, backup: _Backup) -> str:
        return os.path.join(self.directory, backup.name)

    def _names(self) -> list[str]:
        try:
            return [name.rstrip("/") for name in tf.io.gfile.listdir(self.directory)]
        except tf.errors.NotFoundError:  # another process may have removed it just now
            return []

    def _complete(self) -> list[_Backup]:
        """The backups whose index has been written, which comes last; the newest one is last."""
        found = {_Backup.of(name) for name in self._names() if name.endswith(".index")}
        return sorted(backup for backup in found if backup is not None)

    def _may_be_written(self, backup: _Backup) -> bool:
        """Whether another process may be writing a backup, or has as a later rank 0."""
        job, generation = self._writer()
        if backup in self._complete():
            return backup.is_after(job, generation)
        if backup.job == job:
            return bool(job) and backup.generation >= generation
        files = [name for name in self._names() if _Backup.of(name) == backup]
        try:
            times = [tf.io.gfile.stat(os.path.join(self.directory, name)) for name in files]
        except tf.errors.NotFoundError:  # its own process has removed it just now
            return True
        ages = [time.time() - each.mtime_nsec / 1e9 for each in times]
        return min(ages, default=0.0) < _ABANDONED

    def _remove(self, removed: set[str]) -> None:
        """Removes the files of some backups; an index first, without which there is none."""
        for name in sorted(self._names(), key=lambda name: not name.endswith(".index")):
            backup = _Backup.of(name)
            if backup is None or backup.name not in removed:
                continue
            path = os.path.join(self.directory, name)
            try:
                (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)
            except tf.errors.NotFoundError:
                pass  # its own process has removed it


def _problem_with(path: str) -> str | None:
    """Why a checkpoint cannot be used, with its path; `None` if each value can be read."""
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except Exception as error:  # TensorFlow raises many types for wrong bytes
        reason = getattr(error, "message", None) or str(error)
        return f"{path} is damaged: {reason}"
    return None
