"""Which metrics the results of a `train_step` or `test_step` of the user's show, by their names.

At the end of an epoch Keras reads the metrics from their variables if the results of a step have
exactly the names of `model.metrics`. Otherwise it logs the results of the last step. With several
replicas they are means of the replicas' own metrics:

    return {"loss": self.total_loss.result()}    the metric's name is "total_loss"

So while a step runs, or is traced, the objects that `result` of each metric returns are noted. A
result of the step that is one of them is logged from the metric's variables, which count all rows.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist._types import KerasMetric, KerasModel, Logs, Nested, StepFunction
from tfdist.keras.step_functions import around

# A metric, and the name of a number if its result is a dictionary.
_Source = tuple[KerasMetric, str | None]

# By model: the metrics that its steps show, by kind of the step, and by name.
_shown: weakref.WeakKeyDictionary[KerasModel, dict[str, dict[str, _Source]]] = (
    weakref.WeakKeyDictionary()
)
_noted_models: weakref.WeakSet[KerasModel] = weakref.WeakSet()


def noting(model: KerasModel, kind: str, step: StepFunction) -> StepFunction:
    """Returns a step that notes which metrics its results show.

    Args:
      model: has the metrics.
      kind: "train" or "test".
      step: takes a replica's batch. Keras's own is returned as it is.
    """
    function = getattr(step, "__func__", step)
    if str(getattr(function, "__module__", "")).partition(".")[0] in ("keras", "tf_keras"):
        return step

    def call(converted: StepFunction, data: Nested) -> Nested:
        # One replica notes for all: they may run in turns, in threads of their own.
        if model in _noted_models:
            return converted(data)
        with _noted_results(model) as sources:
            results = converted(data)
        _shown.setdefault(model, {})[kind] = _sources_of(results, sources)
        return results

    return around(step, call)


def of_all_rows(model: KerasModel, kind: str, logs: Logs) -> Logs:
    """Returns the logs of an epoch with the metrics' own results in place of the last step's.

    Args:
      model: has made the step; all workers make this call, since it reads variables.
      kind: "train" or "test".
      logs: as Keras has them.
    """
    sources = _shown.get(model, {}).get(kind, {})
    shown = {name: sources[name] for name in logs if name in sources}
    if not shown or _are_read_by_keras(model, logs, shown):
        return logs
    results = {id(metric): metric.result() for metric, _ in shown.values()}

    def value(metric: KerasMetric, part: str | None) -> Any:
        return results[id(metric)] if part is None else results[id(metric)][part]

    return {**logs, **{name: value(*source) for name, source in shown.items()}}


def _are_read_by_keras(model: KerasModel, logs: Logs, shown: Mapping[str, _Source]) -> bool:
    names = {metric.name for metric in model.metrics}
    return set(logs) == names and all(metric.name == name for name, (metric, _) in shown.items())


@contextlib.contextmanager
def _noted_results(model: KerasModel) -> Iterator[dict[int, tuple[Any, _Source]]]:
    """Yields what `result` of each metric returns, by identity; each object is held, too."""
    sources: dict[int, tuple[Any, _Source]] = {}

    def noted(metric: KerasMetric) -> Any:
        original = metric.result

        def result(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            sources.update({id(part): (part, (metric, name)) for name, part in parts})
            return value

        return result

    metrics = {id(metric): metric for metric in model.metrics}.values()
    former = [(metric, vars(metric).get("result")) for metric in metrics]
    _noted_models.add(model)
    try:
        # Not by `setattr`, which would track it.
        for metric in metrics:
            vars(metric)["result"] = noted(metric)
        yield sources
    finally:
        for metric, own in former:
            if own is None:
                del vars(metric)["result"]
            else:
                vars(metric)["result"] = own
        _noted_models.discard(model)


def _sources_of(results: Nested, sources: Mapping[int, tuple[Any, _Source]]) -> dict[str, _Source]:
    if not isinstance(results, dict):
        return {}
    return {name: sources[id(value)][1] for name, value in results.items() if id(value) in sources}
