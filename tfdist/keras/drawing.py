"""The objects that draw orders in a model's data: shuffles, and changing `PyDataset`s.

A process that leaves out a `fit`, `evaluate` or `predict` continues as if it had read its data:

    counts = drawn([x, validation_data])        # in a process that made the call, after it
    reasons = go_to([x, validation_data], counts)      # in a process that leaves it out
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from keras.utils import PyDataset

from tfdist.config.validation import show
from tfdist.data import draws
from tfdist.data.draws import Drawing
from tfdist.errors import TfdistError

_MAX_DRAWS = 1 << 31
# Only the method itself can make the changes of another call, so each call is made: a second's work
# of an empty one. No script has so many epochs; a member that lies could keep this process for
# years.
_MAX_MISSING_CALLS = 1_000_000
_COUNTS = "tfdist_calls"
_CALLS = ("on_epoch_begin", "on_epoch_end")


class EpochCalls:
    """The calls of a method of a `PyDataset` that Keras makes around each epoch.

    Args:
      data: the `PyDataset`, or a `Sequence` of tf_keras.
      name: the method's name.
    """

    def __init__(self, data: PyDataset, name: str) -> None:
        self._data = data
        self._name = name

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, EpochCalls)
            and self._data is other._data
            and self._name == other._name
        )

    def __hash__(self) -> int:
        return hash((id(self._data), self._name))

    @property
    def draws(self) -> int:
        """How often it was called."""
        return vars(self._data).get(_COUNTS, {}).get(self._name, 0)

    def go_to(self, draws: int) -> None:
        """Calls it as often as is missing.

        Raises:
          TfdistError: it has raised an error, which is the cause.
        """
        for _ in range(draws - self.draws):
            try:
                getattr(self._data, self._name)()
            except Exception as error:
                raise TfdistError(
                    f"{self._name} of {type(self._data).__name__}: expected to call it as in a "
                    f"process that has read it, received {type(error).__name__}: {error}"
                ) from error
            note_call(self._data, self._name)

    def why_not(self, draws: int) -> str | None:
        """Why it cannot go to a number of calls; `None` if it can."""
        kind, missing = type(self._data).__name__, draws - self.draws
        if missing > _MAX_MISSING_CALLS:
            return (
                f"{self._name} of its {kind} was called {self.draws} times, and had been {draws}: "
                f"expected at most {_MAX_MISSING_CALLS} calls to make"
            )
        if missing >= 0:
            return None
        return f"{self._name} of its {kind} was called {self.draws} times, and had been {draws}"


def note_call(data: PyDataset, name: str) -> None:
    """Counts a call of a method of a `PyDataset`."""
    counts = vars(data).setdefault(_COUNTS, {})
    counts[name] = counts.get(name, 0) + 1


def drawing(data: Iterable[object]) -> list[Drawing]:
    """Returns what draws orders in the data of a model, each once.

    Args:
      data: the arguments of `fit`, `evaluate` or `predict`: `x` and `validation_data`. Arrays draw
        nothing: their order is a function of a seed, the same in each `fit`.

    Returns:
      In an order that is the same in all processes that run the same program.
    """
    values = [part for value in data for part in _parts(value)]
    return [*draws.generators(values), *dict.fromkeys(_epoch_calls(values))]


def drawn(data: Iterable[object]) -> list[int]:
    """Returns how often the data of a model has drawn orders in this process.

    Args:
      data: as for `drawing`.

    Returns:
      A number for each that `drawing` lists; for `go_to` in another process.
    """
    return [each.draws for each in drawing(data)]


def go_to(data: Iterable[object], counts: Sequence[int]) -> list[str]:
    """Makes the data of a model continue as in a process that has read it.

    Args:
      data: as it was given to `drawn` there.
      counts: the result of `drawn` there.

    Returns:
      Why other rows will follow, in plain words; none if the same rows follow.

    Raises:
      ValueError: `counts` are no such numbers.
      TfdistError: a method of the data has raised an error.
    """
    if not isinstance(counts, list) or not all(map(_is_count, counts)):
        raise ValueError(f"expected how often data has drawn orders, received {show(counts)}")
    values = list(data)
    own = drawing(values)
    reasons = [
        "a Python generator, which was read there, cannot be read on here"
        for value in values
        if isinstance(value, Iterator)
    ]
    if len(own) != len(counts):
        return [*reasons, f"its data has {len(own)} parts that draw orders, and had {len(counts)}"]
    for each, count in zip(own, counts, strict=True):
        reason = each.why_not(count)
        if reason is not None:
            reasons.append(reason)
        elif each.draws != count:
            each.go_to(count)
    return reasons


def _is_count(count: object) -> bool:
    return type(count) is int and 0 <= count < _MAX_DRAWS


def _parts(value: object) -> Sequence[object]:
    """The datasets that a distributed dataset of a strategy of tfdist was made of; else itself."""
    openings = getattr(value, "openings", None)
    return [value] if openings is None else openings.source.datasets


def _epoch_calls(values: Iterable[object]) -> Iterator[EpochCalls]:
    tf_keras = sys.modules.get("tf_keras")
    kinds = (PyDataset,) if tf_keras is None else (PyDataset, tf_keras.utils.Sequence)
    for value in values:
        for base in kinds:
            if isinstance(value, base):
                for name in _CALLS:
                    if getattr(type(value), name, None) is not getattr(base, name, None):
                        yield EpochCalls(value, name)
