"""The options of `tfdist predict` that its workers get. It imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

# A worker ends with this code after an error that another start would not mend.
FINAL_CODE = 65


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """A prediction without a script.

    Attributes:
      model: the path of a SavedModel's folder or of a `.keras` file.
      inputs: patterns of the input files.
      output: the output folder.
      reader: "tfrecord", "lines" or "parquet".
      header: lines that each file begins with and that are no records.
      task_size: records of a part.
      map: a function of one record, as "module:name" or "file.py:name"; `None`: none.
      batch_size, keep, format, errors, metrics, signature, tables: as for `tfdist.predict`.
      lease: seconds after which a silent worker's parts go to others.
    """

    model: str
    inputs: tuple[str, ...]
    output: str
    reader: str = "tfrecord"
    header: int = 0
    task_size: int = 10_000
    map: str | None = None
    batch_size: int = 256
    keep: tuple[str, ...] = ()
    format: str = "parquet"
    errors: str = "fail"
    metrics: tuple[str, ...] = ()
    signature: str | None = None
    tables: tuple[str, ...] | None = None
    lease: float = 30.0

    def text(self) -> str:
        """Returns it as an argument of the worker's program."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> PredictOptions:
        """Returns the options in a text from `text`."""
        fields: dict[str, Any] = json.loads(text)
        for name, value in fields.items():
            fields[name] = tuple(value) if isinstance(value, list) else value
        return cls(**fields)
