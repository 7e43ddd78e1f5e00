"""The description of a queue, which its workers must agree on, and its records' places."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from tfdist.data.queue.queue import EpochPlan

MAX_TASKS = 1_000_000
MAX_FILES = 100_000
MIN_LEASE, MAX_LEASE = 1.0, 3600.0
_KINDS = ("ranges", "arrays", "files")
_MAX_TEXT = 4096
_MAX_NUMBER = 2**62


class DescriptionError(ValueError):
    """A description of a queue is not valid, or too large; the text says why."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """The data of a queue and the arguments that were given for it, equal on all workers.

    Args:
      kind: "ranges", "arrays" or "files".
      records: their number; 0 for files, which are counted later, by one worker.
      task_size: records of a task; the last one of all, or of a file, has the rest.
      about: for arrays their dtypes and shapes and a checksum, for files how they are read.
      files: name and bytes of each; the name is relative to the folder that all are in.
      epochs, shuffle, lease: as in `EpochPlan`.
      seed: `None`: the queue draws one.
    """

    kind: str
    records: int
    task_size: int
    about: str
    files: tuple[tuple[str, int], ...]
    epochs: int | None
    shuffle: bool
    seed: int | None
    lease: float

    @property
    def digest(self) -> str:
        """Identifies all of it."""
        return _hash(dataclasses.astuple(self))

    @property
    def data_digest(self) -> str:
        """Identifies the data, and how it is cut into tasks."""
        return _hash((self.kind, self.records, self.task_size, self.about, self.files))

    def difference(self, other: Spec) -> str:
        """Returns the first difference, as "what: this one's, the other one's"; "" if none."""
        for field in dataclasses.fields(self):
            own, theirs = getattr(self, field.name), getattr(other, field.name)
            if own == theirs:
                continue
            if field.name != "files":
                return f"{field.name}: {own!r:.200}, {theirs!r:.200}"
            for i, (a, b) in enumerate(zip(own, theirs, strict=False)):
                if a != b:
                    return f"file {i}: {_file(a)}, {_file(b)}"
            i = min(len(own), len(theirs))
            shown = [
                _file(files[i]) if i < len(files) else "no such file" for files in (own, theirs)
            ]
            return f"file {i}: {shown[0]}, {shown[1]} ({len(own)} files, {len(theirs)})"
        return ""


@dataclasses.dataclass(frozen=True)
class FilePosition:
    """Where a task of a file begins.

    Args:
      file: the index of the file.
      first: its first record's number in the file.
      records: how many records it has.
      offset: the byte at which the first one begins.
      size: the bytes of all of them.
    """

    file: int
    first: int
    records: int
    offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class Description:
    """A queue's data, cut into tasks.

    Args:
      spec: the requested data.
      places: of the tasks of files; empty for other data.
    """

    spec: Spec
    places: tuple[FilePosition, ...] = ()

    def plan(self, seed: int) -> EpochPlan:
        """Returns what the queue deals out; `seed` counts if the spec has none."""
        spec = self.spec
        if spec.kind == "files":
            sizes = tuple(place.records for place in self.places)
        else:
            whole, rest = divmod(spec.records, spec.task_size)
            sizes = (spec.task_size,) * whole + ((rest,) if rest else ())
        seed = seed if spec.seed is None else spec.seed
        return EpochPlan(sizes, spec.epochs, spec.shuffle, seed, spec.lease)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        spec = self.spec
        return len(self.places) if spec.kind == "files" else -(-spec.records // spec.task_size)

    def place(self, task: int) -> list[int]:
        """Returns where a task is, or the number of its first record.

        Of files: the file's index, offset and bytes, and the first record's number in the file.
        """
        if self.spec.kind != "files":
            return [task * self.spec.task_size]
        place = self.places[task]
        return [place.file, place.offset, place.size, place.first]

    def name(self, task: int, done: int = 0) -> str:
        """Names the records of a task that are not trained, for messages.

        Args:
          task: the task.
          done: how many are trained.
        """
        if self.spec.kind == "files":
            place = self.places[task]
            start, stop = place.first, place.first + place.records
            where = f" of {self.spec.files[place.file][0]!r:.200}"
        else:
            start = task * self.spec.task_size
            stop, where = min(start + self.spec.task_size, self.spec.records), ""
        if done and self.spec.shuffle:
            # Its records are trained in another order.
            where += f", {done} of them trained"
        elif done:
            start += done
        return f"task {task} (records {start} to {stop - 1}{where})"

    def text(self) -> str:
        """Returns it as JSON."""
        return json.dumps(
            {
                "spec": dataclasses.asdict(self.spec),
                "places": [dataclasses.astuple(place) for place in self.places],
            }
        )

    @classmethod
    def parse(cls, text: str, is_whole: bool = True) -> Description:
        """Returns the description in a text.

        Args:
          text: as from `text`.
          is_whole: whether files must be cut into tasks.

        Raises:
          DescriptionError: it is none, or its tasks do not fit its files.
        """
        try:
            found = json.loads(text)
            fields = dict(found["spec"])
            fields["files"] = tuple((name, size) for name, size in fields["files"])
            spec = Spec(**fields)
            places = tuple(FilePosition(*place) for place in found["places"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DescriptionError(f"expected the description of a queue: {error!r:.200}") from None
        check(spec)
        if is_whole:
            _check_places(spec, places)
        return cls(spec, places)


def check(spec: Spec) -> None:
    """Raises DescriptionError unless all of a spec can be dealt out."""
    if spec.kind not in _KINDS:
        raise DescriptionError(f"kind: expected one of {', '.join(_KINDS)}, received {spec.kind!r}")
    _whole("task_size", spec.task_size, 1)
    _whole("records", spec.records, 0 if spec.kind == "files" else 1)
    if spec.epochs is not None:
        _whole("epochs", spec.epochs, 1)
    if spec.seed is not None:
        _whole("seed", spec.seed, 0)
    if not isinstance(spec.shuffle, bool):
        raise DescriptionError(f"shuffle: expected True or False, received {spec.shuffle!r:.50}")
    if isinstance(spec.lease, bool) or not isinstance(spec.lease, int | float):
        raise DescriptionError(f"lease: expected seconds, received {spec.lease!r:.50}")
    if not MIN_LEASE <= spec.lease <= MAX_LEASE:  # nor is NaN between them
        raise DescriptionError(
            f"lease: expected {MIN_LEASE:g} to {MAX_LEASE:g} seconds, received {spec.lease}"
        )
    if not isinstance(spec.about, str) or len(spec.about) > _MAX_TEXT:
        raise DescriptionError(f"expected a text of at most {_MAX_TEXT} characters")
    if (spec.kind == "files") != bool(spec.files) or len(spec.files) > MAX_FILES:
        raise DescriptionError(f"expected 1 to {MAX_FILES} files, received {len(spec.files)}")
    for name, size in spec.files:
        if not isinstance(name, str) or len(name) > _MAX_TEXT:
            raise DescriptionError("expected the name of a file")
        _whole(f"bytes of {name:.200}", size, 0)
    tasks = -(-spec.records // spec.task_size)
    if tasks > MAX_TASKS:
        raise DescriptionError(
            f"expected at most {MAX_TASKS} tasks, received {spec.records} records in tasks of "
            f"{spec.task_size}: make the tasks larger"
        )


def _check_places(spec: Spec, places: tuple[FilePosition, ...]) -> None:
    if (spec.kind == "files") != bool(places) or len(places) > MAX_TASKS:
        raise DescriptionError(
            f"expected 1 to {MAX_TASKS} tasks of files, received {len(places)}: make the tasks "
            "larger, or the files fewer"
        )
    for place in places:
        for field in dataclasses.fields(place):
            _whole(field.name, getattr(place, field.name), 0)
        if place.file >= len(spec.files) or not 1 <= place.records <= spec.task_size:
            raise DescriptionError(f"expected a task of one of the files, received {place}")
        if place.offset + place.size > spec.files[place.file][1]:
            raise DescriptionError(f"{place} lies outside of {_file(spec.files[place.file])}")


def _whole(name: str, value: Any, minimum: int) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not minimum <= value < _MAX_NUMBER:
        raise DescriptionError(
            f"{name}: expected a whole number of at least {minimum}, received {value!r:.50}"
        )


def _file(entry: tuple[str, int]) -> str:
    return f"{entry[0]} of {entry[1]} bytes"


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
