"""The state that each replica has of its own, gathered for checkpoints.

Keras saves the variables of layers and optimizers, as one replica or the mean has them. It leaves
out the states of random generators and the sums of metrics, which replicas have of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist._types import KerasModel, KerasVariable
from tfdist.internals.keras_3 import global_state

# The class of variables of which replicas have values of their own.
from tfdist.internals.tensorflow import SyncOnReadVariable
from tfdist.keras import exchange
from tfdist.keras.models import (
    metrics_variables,
    model_variables,
    optimizer_variables,
    tf_variable,
)
from tfdist.keras.workers import is_on_servers, is_part, local_updates_of, rank_of

# How the names of LocalUpdateStrategy's values begin.
_LOCAL_UPDATES = "local_updates/"


@dataclasses.dataclass(frozen=True)
class OwnState:
    """Values that replicas have of their own.

    Args:
      values: by the name of a variable, its value in each replica of all workers, of shape
        [replicas, ...]. `_own_variables` makes the names.
    """

    values: dict[str, np.ndarray]

    @classmethod
    def of(cls, model: KerasModel, of_all: bool) -> OwnState:
        """The state of a model's replicas.

        Args:
          model: the model.
          of_all: of the replicas of all workers, which all call this; else of this worker's.
        """
        local = {
            name: np.stack([value.numpy() for value in _replicas_of(model, variable)])
            for name, variable in _own_variables(model).items()
        }
        trains_alone = local_updates_of(model.distribute_strategy)
        of_rounds = {}
        if trains_alone is not None:
            variables = [tf_variable(v) for v in model.trainable_variables]
            found = trains_alone.saved(variables, of_all)
            of_rounds = {f"{_LOCAL_UPDATES}{name}": value for name, value in found.items()}
        return cls({**(_gathered(local, model) if of_all else local), **of_rounds})

    def restore(self, model: KerasModel, metrics: bool) -> None:
        """Gives each replica its values.

        With another number of replicas than before, the first one gets the sum of summed variables,
        and a random generator gets the state from one of the former replicas.

        Args:
          model: of the same structure.
          metrics: whether to restore the state of metrics; else all other state.
        """
        trains_alone = local_updates_of(model.distribute_strategy)
        if trains_alone is not None and not metrics:
            variables = [tf_variable(v) for v in model.trainable_variables]
            of_rounds = {
                name.removeprefix(_LOCAL_UPDATES): value
                for name, value in self.values.items()
                if name.startswith(_LOCAL_UPDATES)
            }
            trains_alone.restore(variables, of_rounds)
            trains_alone.take_restored()
        of_metrics = {id(variable) for variable in metrics_variables(model)}
        for name, variable in _own_variables(model).items():
            saved = self.values.get(name)
            if saved is None or (id(variable) in of_metrics) != metrics:
                continue
            here = _replicas_of(model, variable)
            if saved.shape[1:] != tuple(here[0].shape):
                continue  # the model has other metrics now
            for replica, value in enumerate(_divided(saved, variable, model, len(here))):
                here[replica].assign(value)


def _own_variables(model: KerasModel) -> dict[str, KerasVariable]:
    """The variables of which replicas have values of their own, by their kind and a number.

    Not by their paths, which have other numbers if the process made other models before.
    """
    # Layers of tf_keras have none.
    layers = model._flatten_layers()
    generators = [g for layer in layers for g in getattr(layer, "_seed_generators", ())]
    of_keras = global_state.get_global_attribute("global_seed_generator")
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    kinds = {
        "random": [generator.state for generator in generators],
        "random_of_keras": [] if of_keras is None else [of_keras.state],
        "metric": metrics_variables(model),
        "layer": [v for v in model_variables(model) if _is_own(v)],
        "optimizer": [v for v in optimizer_variables(model) if _is_own(v)],
        "accumulator": [v for v in getattr(inner, "_accumulated_gradients", ()) if _is_own_sum(v)],
    }
    found: dict[str, KerasVariable] = {}
    seen: set[int] = set()
    for kind, variables in kinds.items():
        own = [v for v in variables if id(v) not in seen and not is_on_servers(tf_variable(v))]
        seen.update(id(v) for v in own)
        found |= {f"{kind}_{index}": v for index, v in enumerate(own)}
    return found


def _is_own(variable: KerasVariable) -> bool:
    return isinstance(tf_variable(variable), SyncOnReadVariable)


def _is_own_sum(accumulator: KerasVariable | None) -> bool:
    """Whether accumulated gradients are a worker's own; a part of a sum belongs to all."""
    return accumulator is not None and not is_part(getattr(accumulator, "value", None))


def _replicas_of(model: KerasModel, variable: KerasVariable) -> Sequence[tf.Variable]:
    """A variable's copies in the replicas of this process."""
    return model.distribute_strategy.experimental_local_results(tf_variable(variable))


def _gathered(local: dict[str, np.ndarray], model: KerasModel) -> dict[str, np.ndarray]:
    # As many bytes of each worker, since all have the same model and as many devices.
    workers = exchange.gather(model, b"".join(value.tobytes() for value in local.values()))
    gathered, at = {}, 0
    for name, value in local.items():
        parts = [of_worker[at : at + value.nbytes] for of_worker in workers]
        gathered[name] = np.frombuffer(b"".join(parts), value.dtype).reshape(-1, *value.shape[1:])
        at += value.nbytes
    return gathered


def _divided(
    saved: np.ndarray, variable: KerasVariable, model: KerasModel, local: int
) -> list[np.ndarray]:
    """The values of this process's replicas."""
    workers = exchange.workers_of(model)
    first = rank_of(model) * local if workers > 1 else 0
    if len(saved) == workers * local:
        return list(saved[first : first + local])
    if any(variable is of_metric for of_metric in metrics_variables(model)):
        if variable.aggregation == "sum":
            total = saved.sum(axis=0, dtype=saved.dtype)
            return [total if first + i == 0 else np.zeros_like(total) for i in range(local)]
    if variable.aggregation == "mean":
        return [saved.mean(axis=0).astype(saved.dtype)] * local
    return [saved[(first + i) % len(saved)] for i in range(local)]
