"""The formats of parts, by name."""

from __future__ import annotations

from collections.abc import Callable

from tfdist.errors import PredictionError
from tfdist.prediction.parquet import ParquetFormat
from tfdist.prediction.writers import LinesFormat, NpzFormat, RecordFormat, RowFormat

_FORMATS: dict[str, Callable[[], RowFormat]] = {
    "parquet": ParquetFormat,
    "tfrecord": RecordFormat,
    "npz": NpzFormat,
    "jsonl": LinesFormat,
}


def format_of(chosen: str | RowFormat) -> RowFormat:
    """Returns a format.

    Args:
      chosen: a name, or a format itself.

    Raises:
      PredictionError: there is no format of this name.
      ImportError: it needs a package that is not installed.
    """
    if not isinstance(chosen, str):
        if not hasattr(chosen, "suffix") or not hasattr(chosen, "open"):
            raise PredictionError(
                f"format: expected an object with suffix and open(path), received {chosen!r:.200}"
            )
        return chosen
    if chosen not in _FORMATS:
        raise PredictionError(f"format: expected one of {', '.join(_FORMATS)}, received {chosen!r}")
    return _FORMATS[chosen]()
