"""The calls of `fit`, `evaluate` and `predict` of a script, counted equally in all processes.

A process that is started while the job runs begins the script at its beginning. It leaves out each
call that the members have ended, and takes what that has left, so that what the script computes
next comes out as on them:

    members   fit 1    predict 2   fit 3        fit 4 ...
              |----------|---------|----x-------|-----
                              a worker dies
    newcomer            fit 1  predict 2  fit 3                 reads the records of 1 and 2
                        record    record   waits, and joins     in the call in which they are

If the members end call 3 before they have taken the newcomer in, it also takes the record of that
call, and continues. Calls within others, in callbacks, do not count: they belong to the call around
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdist.elastic.membership import Membership
from tfdist.elastic.records import CallRecords, Record, failed
from tfdist.errors import TfdistError

_MAX_FAILURE = 400  # characters


class CallFailedError(TfdistError):
    """The members' call has raised an error, and this process has left it out."""


def _printable(text: str) -> str:
    """A text of another process, without what a terminal may obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text[:_MAX_FAILURE])


class Calls:
    """The calls of one process.

    Args:
      membership: tells the others where this process stands.
      records: the records of the calls.

    Attributes:
      fits: how many of the ended calls were calls of `fit`.
      values: of the arrays of the present call of `fit`; see `data_values`.
      unrecordable: why the present call will leave nothing that another process can take; empty if
        it will.
    """

    def __init__(self, membership: Membership, records: CallRecords) -> None:
        self._membership = membership
        self._records = records
        self._depth = 0
        self.fits = 0
        self.values: list[float] = []
        self.unrecordable = ""

    @property
    def ended(self) -> int:
        """How many calls this process has ended or left out."""
        return len(self._records)

    @property
    def number(self) -> int:
        """The number of the present call, from 1, or of the next one."""
        return self.ended + 1

    def described(self, kind: str) -> dict[str, str]:
        """The present call in words, which all members must agree on; see `check_description`."""
        return {"call": f"number {self.number} of fit, evaluate and predict, {kind}"}

    @property
    def is_inner(self) -> bool:
        """Whether the present call is within another one."""
        return self._depth > 1

    @property
    def is_inside(self) -> bool:
        """Whether a call is under way."""
        return self._depth > 0

    def mark_unrecordable(self, reason: str) -> None:
        """Says why the present call will leave nothing that another process can take."""
        self.unrecordable = reason
        self._stand()

    @contextlib.contextmanager
    def call(self, kind: str) -> Iterator[None]:
        """Makes a `with` block one call.

        Args:
          kind: "fit", "evaluate" or "predict".
        """
        self._depth += 1
        before = self.ended
        self._stand()
        try:
            yield
        except Exception as error:
            if self._depth == 1 and self.ended == before:
                self.end(
                    failed(
                        kind, f"it has ended with {type(error).__name__}: {error}"[:_MAX_FAILURE]
                    )
                )
            raise
        finally:
            self._depth -= 1
            self._stand()

    def end(self, record: Record) -> None:
        """Notes that the present call is over; the members can give its record to newcomers."""
        self._records.add(record)
        self.fits += record.kind == "fit"
        self.unrecordable = ""
        self._stand()

    def begin_after(self, ended: int) -> None:
        """Counts on as the members do, whose loop of its own this newcomer has joined.

        Args:
          ended: how many calls they have ended.
        """
        while self.ended < ended:
            self.end(failed("unknown", "it was over before this process joined"))

    @property
    def open_call(self) -> int:
        """The number of the call in which newcomers may join this process, 0 in none, else -1."""
        call = {0: 0, 1: self.number}.get(self._depth, -1)
        return -1 if call and self.unrecordable else call

    def record(self) -> Record | None:
        """Reads what the present call has left to the members that have ended it.

        Returns:
          None if no answering member has one.

        Raises:
          CallFailedError: it has raised an error on the members.
          RecordGoneError: no member has it.
        """
        found = self._membership.record(self.number)
        return None if found is None else self._checked(found)

    def record_when_ended(self) -> Record:
        """As `record`; waits until the members have ended the call.

        Raises:
          TfdistError: no member answers any more.
          Exception: as for `record`.
        """
        return self._checked(self._membership.record_when_ended(self.number))

    def _checked(self, record: Record) -> Record:
        if not record.failure:
            return record
        number = self.number
        self.end(record)
        raise CallFailedError(
            f"call number {number} of fit, evaluate and predict, {record.kind}, was left out, "
            f"because the members have ended it: {_printable(record.failure)}"
        )

    def _stand(self) -> None:
        # Where another call is within this one, no newcomer can stand.
        self._membership.stand(self.open_call, self.ended)
