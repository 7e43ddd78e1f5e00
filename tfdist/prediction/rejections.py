"""Ends a job with `errors="park"` whose map or model always fails: that is no bad record.

A worker whose first records are all rejected ends the job, unless other parts have rows.
"""

from __future__ import annotations

from collections.abc import Callable

from tfdist.errors import PredictionError

MAX_FIRST = 100
_ADVICE = (
    "Expected a map and a model that fit the records. With errors='park-all' the job continues "
    "without any good record"
)


class Rejections:
    """The bad and the good records of this worker.

    Args:
      are_all_parked: whether no number of bad records is too large.
      has_rows: whether any part of the job has rows.
    """

    def __init__(self, are_all_parked: bool, has_rows: Callable[[], bool]) -> None:
        self._has_good = are_all_parked
        self._has_rows = has_rows
        self._count = 0

    def good(self) -> None:
        """Notes that a record was predicted."""
        self._has_good = True

    def bad(self, message: str) -> None:
        """Notes a bad record.

        Args:
          message: of the error, with the name of the record.

        Raises:
          PredictionError: all of the first records are bad.
        """
        if self._has_good:
            return
        self._count += 1
        if self._count < MAX_FIRST:
            return
        if self._has_rows():
            self._has_good = True
            return
        raise PredictionError(
            f"all of the first {self._count} records were rejected, the last one as {message}. "
            + _ADVICE
        )

    def check_end(self, rows: int, rejected: int) -> None:
        """Raises PredictionError at the end of a job whose records were all rejected."""
        if rejected and not rows and not self._has_good:
            raise PredictionError(
                f"all {rejected} records of the job were rejected, as _rejected lists. {_ADVICE}"
            )
