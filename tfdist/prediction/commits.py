"""Staged files of a part, and the record that commits them at once.

The record names the staged files. Each worker that sees it may rename them, if the committing
worker has died in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import PredictionError
from tfdist.prediction.folder import OutputFolder, link_new, move, read_json, sync, write_json
from tfdist.prediction.job_description import JobDescription
from tfdist.prediction.writers import Columns, RowFormat, RowWriter
from tfdist.reasons import one_line

_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class PartFile:
    """A file of a committed part.

    Attributes:
      name: its name in the output folder.
      staged: its name before.
      bytes, sha256: of its content.
    """

    name: str
    staged: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class PartRecord:
    """A committed part.

    Attributes:
      part: its number.
      rows: the number of its rows.
      rejected: the number of its bad records.
      files: its files; without rows or bad records there is none for them.
      metrics: the states of its metrics, in the order of the job's metrics.
    """

    part: int
    rows: int
    rejected: int
    files: tuple[PartFile, ...]
    metrics: Sequence[Sequence[Any]] = ()


class StagedPart:
    """The files of a part in the making.

    Args:
      folder: the job's.
      job: its description.
      part: the part's number.
      format: of the part.
    """

    def __init__(
        self, folder: OutputFolder, job: JobDescription, part: int, format: RowFormat
    ) -> None:
        self._folder, self._job, self._part, self._format = folder, job, part, format
        self._path = folder.stage(job.part_name(part))
        self._rejects = folder.stage(job.rejected_name(part))
        self._record = folder.stage(f"{part:06d}.json")
        self._writer: RowWriter | None = None
        self._rejected: list[dict[str, Any]] = []
        self._rows = 0
        self._kinds: Mapping[str, str] = {}

    def close(self) -> None:
        """Removes the files that are not committed."""
        if self._writer is not None:
            try:
                self._writer.close()
            except Exception:  # the error that has ended the block says more
                pass
        for path in (self._path, self._rejects, self._record):
            path.unlink(missing_ok=True)

    def write(self, columns: Columns) -> None:
        """Writes rows."""
        kinds = {name: _kind(column) for name, column in columns.items()}
        if self._writer is None:
            self._kinds = kinds
        elif kinds != self._kinds:
            raise PredictionError(
                f"{self._path.name.partition('.')[0]}: expected batches of the columns of its "
                f"first one, {_listed(self._kinds)}, received {_listed(kinds)}"
            )
        with self._named():
            if self._writer is None:
                self._writer = self._format.open(str(self._path))
            self._writer.write(columns)
        self._rows += len(next(iter(columns.values())))

    def reject(self, file: str, record: int, message: str) -> None:
        """Notes a bad record.

        Args:
          file: the input file; "" without one.
          record: its number there, or in the whole input.
          message: the reason.
        """
        self._rejected.append({"file": file, "record": record, "message": message})

    def commit(self, metrics: Sequence[Sequence[Any]]) -> bool:
        """Commits the part with the states of its metrics.

        Returns:
          Whether it has; it has not if another worker has committed the part before.
        """
        files = []
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with self._named():
                writer.close()
            files.append(self._file(self._path, self._job.part_name(self._part)))
        if self._rejected:
            with open(self._rejects, "x") as file:
                for one in sorted(self._rejected, key=lambda one: one["record"]):
                    file.write(json.dumps(one) + "\n")
            name = f"{self._folder.rejected.name}/{self._job.rejected_name(self._part)}"
            files.append(self._file(self._rejects, name))
        record = PartRecord(self._part, self._rows, len(self._rejected), tuple(files), metrics)
        write_json(self._record, dataclasses.asdict(record))
        # Folders are not synced. A machine that fails may lose the link or a name, and then the
        # part is made again.
        if not link_new(self._record, self._folder.record(self._part)):
            return False
        publish(self._folder, record)
        return True

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Names the format and the columns in the error of a writer."""
        try:
            yield
        except (OSError, PredictionError):
            raise
        except Exception as error:
            raise PredictionError(
                f"format {self._format.suffix}: expected columns that it can write, received "
                f"{_listed(self._kinds)}: {one_line(error)}"
            ) from error

    def _file(self, staged: Path, name: str) -> PartFile:
        sync(staged)
        digest = hashlib.sha256()
        with open(staged, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return PartFile(name, staged.name, staged.stat().st_size, digest.hexdigest())


def _kind(column: np.ndarray) -> str:
    """Returns the type of a column; of texts without their length, which numpy counts in it."""
    return {"S": "bytes", "U": "str"}.get(column.dtype.kind, str(column.dtype))


def _listed(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in kinds.items())


def publish(folder: OutputFolder, record: PartRecord) -> bool:
    """Gives the files of a committed part their names; returns whether all are there."""
    are_there = True
    for file in record.files:
        path = folder.path / file.name
        path.parent.mkdir(exist_ok=True)
        are_there &= move(folder.staged / file.staged, path)
    return are_there


def read_record(folder: OutputFolder, part: int) -> PartRecord:
    """Reads the record of a committed part.

    Raises:
      PredictionError: it is damaged.
    """
    path = folder.record(part)
    found = read_json(path)
    try:
        files = tuple(PartFile(**file) for file in found.pop("files"))
        return PartRecord(files=files, **found)
    except (TypeError, KeyError, AttributeError) as error:
        raise PredictionError(f"{path} is damaged: {error!r}") from None


def has_rows(folder: OutputFolder) -> bool:
    """Whether any committed part has rows."""
    for part in folder.finished():
        with contextlib.suppress(FileNotFoundError):  # it was withdrawn in between
            if read_record(folder, part).rows:
                return True
    return False


def withdraw_vanished(folder: OutputFolder, part: int) -> bool:
    """Makes a committed part open again, if one of its files is lost.

    Returns:
      Whether it was.

    Raises:
      PredictionError: a file has another size.
    """
    record = read_record(folder, part)
    if publish(folder, record) and _has_files(folder, record):
        return False
    folder.record(part).unlink(missing_ok=True)
    return True


def is_there(folder: OutputFolder, part: int) -> bool:
    """Whether the record and the files of a part are there.

    Raises:
      PredictionError: a file has another size.
    """
    try:
        return _has_files(folder, read_record(folder, part))
    except FileNotFoundError:
        return False


def _has_files(folder: OutputFolder, record: PartRecord) -> bool:
    for file in record.files:
        try:
            size = os.stat(folder.path / file.name).st_size
        except FileNotFoundError:
            return False
        if size != file.bytes:
            raise PredictionError(
                f"{folder.path / file.name}: expected {file.bytes} bytes, received {size}: it was "
                "changed after it was written. Remove it, and the job writes it again"
            )
    return True
