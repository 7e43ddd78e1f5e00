"""The end of a job: `_manifest.json` lists its parts, and `_SUCCESS` says that all are there.

Every worker would write the same bytes; one of them does.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.prediction.commits import PartRecord
from tfdist.prediction.folder import OutputFolder, read_json, sync, write_json
from tfdist.prediction.job_description import JobDescription

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The result of a prediction, equal on all workers.

    Attributes:
      folder: of the parts.
      parts: the names of their files, in the order of the input.
      rows: of all parts.
      rejected: the number of bad records.
      metrics: of all rows, by name.
    """

    folder: str
    parts: Sequence[str]
    rows: int
    rejected: int
    metrics: Mapping[str, Any]


def write(
    folder: OutputFolder,
    job: JobDescription,
    records: Sequence[PartRecord],
    metrics: Mapping[str, Any],
) -> None:
    """Writes the manifest of a job, and marks its end."""
    content = {
        "format": _FORMAT,
        "model": job.arguments.model,
        "rows": sum(record.rows for record in records),
        "rejected": sum(record.rejected for record in records),
        "metrics": metrics,
        "parts": [_entry(job, record) for record in records],
    }
    staged = folder.stage("manifest")
    write_json(staged, content)
    os.replace(staged, folder.manifest)
    sync(folder.path)
    staged = folder.stage("success")
    staged.touch()
    os.replace(staged, folder.success)
    sync(folder.path)


def read(folder: OutputFolder) -> Predicted:
    """Reads the result of a job that has ended."""
    found = read_json(folder.manifest)
    return Predicted(
        folder=str(folder.path),
        parts=[part["part"] for part in found["parts"] if part["part"] is not None],
        rows=found["rows"],
        rejected=found["rejected"],
        metrics=found["metrics"],
    )


def _entry(job: JobDescription, record: PartRecord) -> dict[str, Any]:
    file, first, end = job.records_of(record.part)
    entry: dict[str, Any] = {
        "part": None,
        "rows": record.rows,
        "rejected": record.rejected,
        "input": {"file": file, "first": first, "end": end},
    }
    for written in record.files:
        if written.name == job.part_name(record.part):
            entry |= {"part": written.name, "bytes": written.bytes, "sha256": written.sha256}
    return entry
