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


class PartMetrics:
    """The metrics of a part.

    Args:
      metrics: of Keras 3, or their names, such as "mae".

    Raises:
      PredictionError: there is a metric of which states cannot be added.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = [_metric(one) for one in metrics]
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
        """Counts a batch."""
        for metric in self._metrics:
            metric.update_state(labels, predictions, sample_weight=weights)

    def states(self) -> list[list[Any]]:
        """Returns the states of the part: for each metric the values of its variables."""
        return [
            [np.asarray(value).tolist() for value in metric.variables] for metric in self._metrics
        ]

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
    found = keras.metrics.get(given) if isinstance(given, str) else given
    if isinstance(found, keras.metrics.Metric):
        return found
    if not callable(found):
        raise PredictionError(f"metrics: expected Keras metrics or names, received {given!r:.200}")
    name = getattr(found, "__name__", "metric")
    return keras.metrics.MeanMetricWrapper(found, name=name)
