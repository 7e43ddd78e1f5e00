"""How a rank of a multi-process test ended, and its description; see ranks.py."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    Attributes:
      rank: the rank.
      size: the number of ranks.
      exit_code: the process's exit code, None if a signal ended it.
      signal: the signal that ended the process, or None.
      exception: name of the type of the exception that left the body, or None.
      bases: names of that type and all its base classes.
      message: the exception's text.
      traceback: the formatted traceback, the stacks for a rank that was stopped because it hung.
      result: the body's result.
      output: the last lines of the rank's stdout and stderr.
      finished_at: when the body failed or returned, else when the process ended, by
        `time.monotonic()`.
      elapsed: the same in seconds since the ranks were started.
      hung: why the test had to stop the rank; empty if it did not.
    """

    rank: int
    size: int
    exit_code: int | None
    signal: signal.Signals | None
    exception: str | None
    bases: tuple[str, ...]
    message: str
    traceback: str
    result: Any
    output: str
    finished_at: float
    elapsed: float
    hung: str

    @property
    def ok(self) -> bool:
        """The body returned and the process exited with 0."""
        return self.exit_code == 0 and self.exception is None

    def describe(self) -> str:
        """The rank's end in words, with traceback and output."""
        if self.hung:
            what = self.hung
        elif self.exception is not None:
            what = f"{self.exception}: {self.message}"
        elif self.signal is not None:
            what = f"ended by {self.signal.name}"
        else:
            what = f"exit code {self.exit_code}"
        text = f"rank {self.rank} of {self.size}: {what} (at {self.elapsed:.2f} s)\n"
        text += self.traceback and f"{self.traceback.rstrip()}\n"
        if self.output.strip():
            text += f"--- rank {self.rank}'s last output ---\n{self.output.rstrip()}\n"
        return text


def describe_all(outcomes: Sequence[Outcome]) -> str:
    """Several ends in words, the first in time first; ranks that the test stopped come last."""
    in_order = sorted(outcomes, key=lambda outcome: (bool(outcome.hung), outcome.finished_at))
    return "\n".join(outcome.describe() for outcome in in_order)
