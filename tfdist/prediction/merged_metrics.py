"""Metrics of all rows, merged from the states of parts.

A metric whose variables begin with zeros and add up over rows has the state of all rows as the sum
of the parts' states: the means, and all that count. The sums are made in the order of the parts, so
that each worker gets the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from tfdist.errors import PredictionError
from tfdist.reasons import kind_and_text

# `fit` and `evaluate` choose a metric for these names by the shapes of labels and outputs. Taken
# alone, Keras's "accuracy" counts outputs that equal their labels exactly.
_BY_SHAPE = {
    name: [f"{kind}_{what}" for kind in ("binary", "categorical", "sparse_categorical")]
    for what, names in (("accuracy", ("accuracy", "acc")), ("crossentropy", ("crossentropy", "ce")))
    for name in names
}


class PartMetrics:
    """The metrics of a part.

    Args:
      metrics: of Keras 3, or their names, such as "mae".

    Raises:
      PredictionError: there is no such metric, its states cannot be added, or two have one name.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        if isinstance(metrics, str) or not isinstance(metrics, Iterable):
            raise PredictionError(
                f"metrics: expected a list of metrics or names, received {metrics!r:.200}"
            )
        self._metrics = [_metric(one) for one in metrics]
        for name in self.names:
            if self.names.count(name) > 1:
                raise PredictionError(
                    f"metrics: expected metrics of different names, received {name!r} more than "
                    "once: give them names"
                )
        for metric in self._metrics:
            metric.reset_state()
            if any(np.any(np.asarray(value)) for value in metric.variables):
                raise PredictionError(
                    f"metrics: expected a metric whose variables begin with zeros and add up over "
                    f"rows, received {metric.name!r}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(metric.name for metric in self._metrics)

    def begin(self) -> None:
        """Begins a part."""
        for metric in self._metrics:
            metric.reset_state()

    def update(self, labels: Any, predictions: Any, weights: Any) -> None:
        """Counts a batch.

        Raises:
          PredictionError: a metric does not take it.
        """
        for metric in self._metrics:
            try:
                metric.update_state(labels, predictions, sample_weight=weights)
            except Exception as error:
                raise PredictionError(
                    f"metrics: {metric.name!r} expected labels and outputs that fit, received "
                    f"labels {_described(labels)} and outputs {_described(predictions)}: "
                    f"{kind_and_text(error)[1]}"
                ) from error

    def states(self) -> list[list[Any]]:
        """Returns the states of the part: for each metric the values of its variables."""
        return [
            [np.asarray(value).tolist() for value in metric.variables] for metric in self._metrics
        ]

    def lacks_variables(self, states: Sequence[Sequence[Any]]) -> bool:
        """Whether a metric that makes its variables with its first batch has not had one here."""
        return any(
            len(metric.variables) < len(values)
            for metric, values in zip(self._metrics, states, strict=bool(states))
        )

    def merged(self, states: Iterable[Sequence[Sequence[Any]]]) -> dict[str, float]:
        """Returns the metrics of all parts, by name."""
        sums: list[list[Any]] | None = None
        for of_part in states:
            arrays = [[np.asarray(value, np.float64) for value in one] for one in of_part]
            if sums is None:
                sums = arrays
            else:
                sums = [
                    [a + b for a, b in zip(one, other, strict=True)]
                    for one, other in zip(sums, arrays, strict=True)
                ]
        found = {}
        for metric, values in zip(self._metrics, sums or [], strict=bool(sums)):
            for variable, value in zip(metric.variables, values, strict=True):
                variable.assign(value.astype(np.dtype(variable.dtype)))
            found[metric.name] = np.asarray(metric.result()).tolist()
        return found


def _metric(given: Any) -> Any:
    """Returns a metric, of itself, its name or a function."""
    if isinstance(given, str) and given in _BY_SHAPE:
        raise PredictionError(
            f"metrics: expected one of {', '.join(_BY_SHAPE[given])}, or keras.metrics.Accuracy() "
            f"for labels as outputs, received {given!r}, for which fit chooses one by the shapes"
            if given.startswith("acc")
            else f"metrics: expected one of {', '.join(_BY_SHAPE[given])}, received {given!r}"
        )
    try:
        found = keras.metrics.get(given) if isinstance(given, str) else given
    except ValueError as error:
        raise PredictionError(
            f"metrics: expected the name of a Keras metric, received {given!r:.200}"
        ) from error
    if isinstance(found, keras.metrics.Metric):
        return found
    if not callable(found):
        raise PredictionError(f"metrics: expected Keras metrics or names, received {given!r:.200}")
    name = getattr(found, "__name__", "metric")
    return keras.metrics.MeanMetricWrapper(found, name=name)


def _described(value: Any) -> str:
    if value is None:
        return "None"
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"
