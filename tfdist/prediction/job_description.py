"""The description of a job, which the first worker writes and all others must fit.

It has the input and its tasks, the identity of model and map, and the arguments that decide on the
bytes of a part. It stays in the output folder: a job that is started again continues with it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from tfdist.data.queue.description import Description, Spec
from tfdist.errors import PredictionError
from tfdist.prediction.claims import Claims
from tfdist.prediction.folder import OutputFolder, link_new, read_json, sync, write_json
from tfdist.prediction.input_files import InputFiles, NotedTimes

_FORMAT = 1
_NAMES = {"model": "the model", "map": "the map", "content": "the content of the input files"}
_PAUSE = 0.1  # seconds between two looks for the description that another worker makes


@dataclasses.dataclass(frozen=True)
class Arguments:
    """All that must be equal in each start of a job, except the input.

    Attributes:
      model, map: the fingerprints.
      batch_size, keep, suffix, errors, metrics: as for `tfdist.predict`.
      content: the fingerprint of the input files; "" if it is unknown.
    """

    model: str
    map: str
    batch_size: int
    keep: tuple[str, ...]
    suffix: str
    errors: str
    metrics: tuple[str, ...]
    content: str = ""

    def difference(self, other: Arguments) -> str:
        """Returns the first difference, as "what: expected this one's, received the other's"."""
        for field in dataclasses.fields(self):
            own, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "content" and not (own and theirs):
                continue
            if own != theirs:
                what = _NAMES.get(field.name, field.name)
                return f"{what}: expected {own!r:.200}, received {theirs!r:.200}"
        return ""


@dataclasses.dataclass(frozen=True)
class JobDescription:
    """A job's input and arguments.

    Attributes:
      data: the input, cut into tasks: part N has the records of task N.
      arguments: as above.
      times: of the input files; `None` in a folder of an earlier release.
    """

    data: Description
    arguments: Arguments
    times: NotedTimes | None = None

    @property
    def parts(self) -> int:
        """The number of parts."""
        return self.data.tasks

    def part_name(self, part: int) -> str:
        """Returns the name of a part's file."""
        return f"{self._stem(part)}{self.arguments.suffix}"

    def rejected_name(self, part: int) -> str:
        """Returns the name of the file with a part's bad records."""
        return f"{self._stem(part)}.jsonl"

    def records_of(self, part: int) -> tuple[str, int, int]:
        """Returns the file of a part's records, "" without files, and their range in it."""
        spec = self.data.spec
        if spec.kind == "files":
            place = self.data.places[part]
            return spec.files[place.file][0], place.first, place.first + place.records
        first = part * spec.task_size
        return "", first, min(first + spec.task_size, spec.records)

    def _stem(self, part: int) -> str:
        return f"part-{part:06d}-of-{self.parts:06d}"


def agree(
    folder: OutputFolder,
    claims: Claims,
    spec: Spec,
    describe: Callable[[], Description],
    arguments: Arguments,
    input_files: InputFiles,
    may_continue: Callable[[], None] = lambda: None,
) -> JobDescription:
    """Returns the description of the job; the first worker makes it, and the others wait for it.

    Args:
      folder: the job's.
      claims: of its workers.
      spec: the input of this worker.
      describe: cuts it into tasks.
      arguments: of this worker.
      input_files: of this worker.
      may_continue: raises an exception if this process is to end.

    Raises:
      PredictionError: the folder is of another input, model or arguments; names the difference.
    """
    while not folder.description.exists():
        claim = claims.take_name("description")
        if claim is None:
            may_continue()
            time.sleep(_PAUSE)
            continue
        try:
            if not folder.description.exists():
                data = _not_empty(describe())
                _write(folder, JobDescription(data, arguments, input_files.noted))
        finally:
            claims.release(claim, is_done=True)
    found = read(folder)
    difference = found.data.spec.difference(spec)
    if difference:
        raise PredictionError(
            f"{folder.path} is the output of another input: {difference} (first its own, then this "
            "one's). Expected the same input, or a new folder"
        )
    if found.times is not None:
        input_files.compare(found.times)
    difference = found.arguments.difference(arguments)
    if difference:
        raise PredictionError(
            f"{folder.path} was begun with another value of {difference}. Expected the same one, "
            "or a new folder"
        )
    return found


def _not_empty(data: Description) -> Description:
    if not data.tasks:
        raise PredictionError(
            f"data: expected at least one record, found none in {len(data.spec.files)} files"
        )
    return data


def read(folder: OutputFolder) -> JobDescription:
    """Reads the description of a job.

    Raises:
      FileNotFoundError: no worker has written it.
      PredictionError: it is damaged.
    """
    found = read_json(folder.description)
    try:
        if found["format"] != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, received {found['format']!r:.50}")
        fields: dict[str, Any] = dict(found["arguments"])
        for name, value in fields.items():
            fields[name] = tuple(value) if isinstance(value, list) else value
        arguments = Arguments(**fields)
        times = NotedTimes.parse(found["times"]) if found.get("times") else None
        return JobDescription(Description.parse(found["data"]), arguments, times)
    except (ValueError, TypeError, KeyError) as error:
        raise PredictionError(f"{folder.description} is damaged: {error}") from None


def _write(folder: OutputFolder, description: JobDescription) -> None:
    staged = folder.stage("job")
    times = description.times
    content = {
        "format": _FORMAT,
        "arguments": dataclasses.asdict(description.arguments),
        "times": times and dataclasses.asdict(times),
        "data": description.data.text(),
    }
    try:
        write_json(staged, content)
        link_new(staged, folder.description)
        sync(folder.job)
    finally:
        os.unlink(staged)
