"""A state that changes only as a table of transitions says."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)


class StateMachine(Generic[S]):
    """The state of one subject.

    Args:
      subject: the name of the state's owner, for messages.
      transitions: the states that may follow each state.
      state: the first one.

    Attributes:
      state: the present state.
    """

    def __init__(self, subject: str, transitions: Mapping[S, frozenset[S]], state: S) -> None:
        self.state = state
        self._subject = subject
        self._transitions = transitions

    def go(self, to: S) -> None:
        """Changes the state.

        Raises:
          RuntimeError: the table does not have this transition, which is a defect of the caller.
        """
        if to not in self._transitions[self.state]:
            expected = sorted(state.name for state in self._transitions[self.state])
            raise RuntimeError(
                f"{self._subject} that is {self.state.name} expected one of {expected} to follow, "
                f"received {to.name}"
            )
        self.state = to
