"""In a step every row of the global batch weighs the same, however the rows are cut.

Keras divides a replica's loss by the replica's rows, and again by the number of replicas; the
optimizer adds the replicas' gradients. That is the mean over the global batch only if all replicas
have the same number of rows. Here a replica with n of the B rows multiplies its mean by n/B:

    replica 0 has the rows a b c    (a + b + c)/3 * 3/5
    replica 1 has the rows d e      (d + e)/2     * 2/5    sum: (a + b + c + d + e)/5

Only losses that Keras itself would divide by the number of replicas are multiplied. Gradients are
not: losses with reduction="sum", and losses of a `train_step` that divides by the global batch, are
right without it.

The replicas exchange n at the start of a step, beside the forward pass, unless the dataset tells
that all batches divide evenly, or each worker has the whole batch (elastic training). A loss with a
mask, or with reduction="mean_with_sample_weight", is divided by another number than n; its replicas
exchange that number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras import ops, tree

from tfdist._types import KerasLoss, KerasModel, Nested, StepFunction
from tfdist.internals.keras_3 import CompileLoss
from tfdist.internals.keras_3 import loss as losses
from tfdist.internals.keras_3_trainer import TensorFlowTrainer

# The specs of a dataset tell that its batches divide.
# Cond and while loops are functions of their own, which belong to one place of the outer function.
from tfdist.internals.tensorflow import (
    ControlFlowFuncGraph,
    DistributedDataset,
    PerReplicaSpec,
)
from tfdist.keras.prediction_attributes import changed
from tfdist.keras.registry import hooks
from tfdist.keras.shown_metrics import noting
from tfdist.keras.step_functions import around
from tfdist.keras.workers import (
    elastic_job_of,
    has_copies,
    has_peers,
    living_replicas,
    local_updates_of,
    replica_with_peers,
    trains_on_servers,
)
from tfdist.ops.collectives.naming import named

_log = logging.getLogger("tfdist")
_thread = threading.local()
_MEANS = ("mean", "sum_over_batch_size")


@dataclasses.dataclass(frozen=True)
class _Step:
    """One replica's part of a training step.

    Attributes:
      weight: its fraction of the step, float64[].
      graph: the graph to which the weight belongs; `None` if the step runs eagerly.
    """

    weight: tf.Tensor
    graph: tf.Graph | None


def weighted(step: StepFunction, are_even: bool = False) -> StepFunction:
    """Returns a training step that knows its replica's fraction of the rows.

    Args:
      step: takes a replica's batch.
      are_even: all replicas of all workers always have the same number of rows.
    """
    return _knowing(step, lambda data: _weight_of_rows(data, are_even))


def whole(step: StepFunction) -> StepFunction:
    """Returns a step of replicas each of which has the whole batch."""
    return _knowing(step, lambda data: tf.constant(1.0, tf.float64))


def _knowing(step: StepFunction, weigh: Callable[[Nested], tf.Tensor | None]) -> StepFunction:
    def call(converted: StepFunction, data: Nested) -> Nested:
        weight = weigh(data)
        with contextlib.nullcontext() if weight is None else _step_of(weight):
            return converted(data)

    result = around(step, call)
    getattr(result, "python_function", result).is_weighted = True
    return result


def is_weighted(step: StepFunction) -> bool:
    """Whether `weighted` returned a training step."""
    function = getattr(step, "python_function", step)
    return getattr(function, "is_weighted", False)


@hooks(TensorFlowTrainer, "_maybe_symbolic_build")
def note_even_batches(original, self, iterator=None, data_batch=None):
    """`fit` notes whether its batches are sure to divide evenly: replicas then exchange nothing."""
    self._has_even_batches = iterator is not None and are_even(iterator._distributed_dataset)
    return original(self, iterator=iterator, data_batch=data_batch)


@hooks(TensorFlowTrainer, "make_train_function")
def make_for_batches(original, self, force=False):
    """Data that may divide unevenly needs another training step than data that does not."""
    made_for = vars(self).get("_is_for_even_batches")
    return original(self, force or made_for not in (None, _has_even_batches(self)))


@hooks(TensorFlowTrainer, "make_test_function")
def make_for_evaluated_batches(original, self, force=False):
    """Data that may divide unevenly needs another evaluating step than data that does not."""
    made_for = vars(self).get("_is_tested_for_even_batches")
    return original(self, force or made_for not in (None, _has_even_batches(self)))


@hooks(TensorFlowTrainer, "_make_function")
def weigh_steps(original, self, step_function):
    """A replica's loss weighs by its rows of the global batch, not as all others.

    In an evaluation this matters for losses that are sums over the rows. Results that are metrics
    are noted, for the logs of an epoch.
    """
    strategy = self.distribute_strategy
    trains, tests = step_function == self.train_step, step_function == self.test_step
    if has_peers(strategy):
        step_function = noting(self, "train" if trains else "test", step_function)
    if trains and has_peers(strategy):
        self._is_for_even_batches = _has_even_batches(self)
        step_function = weighted(step_function, self._is_for_even_batches)
    elif tests and trains_on_servers(strategy):
        step_function = whole(step_function)
    elif tests and has_copies(strategy) and _logs_need_rows(self):
        self._is_tested_for_even_batches = _has_even_batches(self)
        step_function = weighted(step_function, self._is_tested_for_even_batches)
    return original(self, step_function)


def _logs_need_rows(model: KerasModel) -> bool:
    """Whether a logged loss weighs by rows: one of several outputs, or what may be a sum."""
    compiled = getattr(model, "_compile_loss", None)
    given = [] if compiled is None else tree.flatten(compiled._user_loss)
    of_outputs = getattr(compiled, "_flat_losses", None) or given
    return len(of_outputs) > 1 or not all(_is_mean_of_keras(loss) for loss in given)


def _is_mean_of_keras(loss: KerasLoss) -> bool:
    if loss is None or isinstance(loss, str):
        return True
    if isinstance(loss, losses.Loss):
        is_mean = loss.reduction in (*_MEANS, "mean_with_sample_weight")
        return is_mean and _is_of_keras(type(loss)) and _is_of_keras(getattr(loss, "fn", losses))
    return _is_of_keras(loss)


def _is_of_keras(function: object) -> bool:
    name = getattr(function, "__module__", None) or getattr(function, "__name__", None)
    return str(name).startswith("keras.src.losses")


def _has_even_batches(model: KerasModel) -> bool:
    return vars(model).get("_has_even_batches", False)


@hooks(losses, "scale_loss_for_distribution")
def scale_by_rows(original, value):
    """A training step multiplies a replica's loss by the replica's fraction of the rows."""
    return scaled(original, value)


@hooks(losses, "unscale_loss_for_distribution")
def unscale_by_rows(original, value):
    """A training step divides what it logs by that fraction; metrics multiply by the rows."""
    step = _current_step()
    living = living_replicas() if step is None else None
    if living is not None:
        return value * tf.cast(living, value.dtype)
    # The losses of outputs are logged without the number of rows, unless the step is eager.
    if step is None or (getattr(_thread, "logs_outputs", False) and step.graph is not None):
        return original(value)
    return tf.math.divide_no_nan(value, tf.cast(step.weight, value.dtype))


@hooks(CompileLoss, "call")
def note_outputs(original, self, y_true, y_pred, sample_weight=None):
    """The logged losses of several outputs are means over batches; replicas weigh the same."""
    step = _current_step()
    if step is not None and step.graph is not None:
        y_pred = tree.map_structure(
            lambda prediction: changed(prediction, _without_number_of_rows), y_pred
        )
    _thread.logs_outputs = True
    try:
        return original(self, y_true, y_pred, sample_weight)
    finally:
        _thread.logs_outputs = False


def _without_number_of_rows(prediction: tf.Tensor) -> tf.Tensor:
    """Hides the number of rows from Keras, which would weigh a replica's logged loss by it."""
    shape = prediction.shape
    if not shape.rank or shape[0] is None:
        return prediction
    return tf.raw_ops.PlaceholderWithDefault(input=prediction, shape=[None, *shape[1:]])


@hooks(losses, "reduce_weighted_values")
def weigh_by_divisor(
    original,
    values,
    sample_weight=None,
    mask=None,
    reduction="sum_over_batch_size",
    dtype=None,
):
    """A loss with a mask, or with "mean_with_sample_weight", weighs by its divisor."""
    divisor = _divisor(values, sample_weight, mask, reduction, dtype)
    weight = None if divisor is None else _weight_of_divisor(divisor)
    with contextlib.nullcontext() if weight is None else _step_of(weight):
        return original(values, sample_weight, mask, reduction, dtype)


def scaled(original: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    """Multiplies a loss by the replica's fraction of the training step.

    Args:
      original: scales a loss outside of a training step.
      value: the loss, a tensor.
    """
    step = _current_step()
    if step is None:
        living = living_replicas()
        return original(value) if living is None else value / tf.cast(living, value.dtype)
    # Without rows a mean is NaN.
    return tf.math.multiply_no_nan(value, tf.cast(step.weight, value.dtype))


def relative_weight(divisor: Callable[[], tf.Tensor]) -> tf.Tensor | None:
    """Returns the factor from a replica's weight by rows to its weight by another number.

    Args:
      divisor: makes the number, a scalar.

    Returns:
      float64[], to multiply a loss by that is also multiplied by the weight by rows; `None` outside
      of a training step.
    """
    step = _current_step()
    weight = _weight_of_divisor(divisor)
    if step is None or weight is None:
        return None
    return tf.math.divide_no_nan(weight, step.weight)


def _weight_of_divisor(divisor: Callable[[], tf.Tensor]) -> tf.Tensor | None:
    step = _current_step()
    if step is None:
        return None
    if _graph() is not step.graph:
        _warn_of_branch()
        return None
    return _fraction(divisor(), "divisor_of_loss")


def are_even(dataset: object) -> bool:
    """Whether all replicas of all workers have the same number of rows in each batch, for certain.

    The answer is the same on all workers, since the strategy distributes a dataset that all have.

    Args:
      dataset: a distributed dataset.
    """
    # Not from functions, which make datasets of each worker's own; and without an end, at which
    # some replicas have no rows.
    if not isinstance(dataset, DistributedDataset) or dataset._enable_get_next_as_optional:
        return False
    options = dataset._original_dataset.options().experimental_distribute
    if options.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF:
        return False  # each worker has cut its own
    spec = tf.nest.flatten(dataset._element_spec)[0]
    shape = (spec._value_specs[0] if isinstance(spec, PerReplicaSpec) else spec).shape
    return bool(shape.rank) and shape[0] is not None


def _current_step() -> _Step | None:
    step = getattr(_thread, "step", None)
    if step is None:
        return None
    graph = _graph()
    while graph is not step.graph and isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    if graph is step.graph:
        return step
    _warn_of_function()
    return None


@contextlib.contextmanager
def _step_of(weight: tf.Tensor) -> Iterator[None]:
    before = getattr(_thread, "step", None)
    _thread.step = _Step(weight, _graph())
    try:
        yield
    finally:
        _thread.step = before


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _weight_of_rows(data: Nested, are_even: bool) -> tf.Tensor | None:
    replica = replica_with_peers()
    if replica is None or not _reaches_all_workers(replica.strategy):
        return None
    if are_even:
        return tf.constant(1 / replica.num_replicas_in_sync, tf.float64)
    rows = rows_in(data)
    if rows is None:
        return None
    total = getattr(_thread, "rows_of_step", None)
    if total is not None:
        return tf.math.divide_no_nan(tf.cast(rows, tf.float64), tf.cast(total, tf.float64))
    return _fraction(rows, "rows_of_the_batch")


def rows_in(data: Nested) -> tf.Tensor | None:
    """Returns the number of rows of a batch, int64[]; `None` if it has no tensors.

    Args:
      data: tensors in any structure, of which the first one counts. A scalar counts as one row.
    """
    first = next((leaf for leaf in tree.flatten(data) if leaf is not None), None)
    if first is None:
        return None
    shape = [first.nrows()] if isinstance(first, tf.RaggedTensor) else tf.shape(first, tf.int64)
    return tf.concat([tf.cast(shape, tf.int64), [1]], 0)[0]


@contextlib.contextmanager
def knowing_rows(rows: tf.Tensor | None) -> Iterator[None]:
    """Within it replicas need not exchange their numbers of rows.

    Args:
      rows: the rows of the whole batch, a scalar; `None` if they are not known.
    """
    before = getattr(_thread, "rows_of_step", None)
    _thread.rows_of_step = rows
    try:
        yield
    finally:
        _thread.rows_of_step = before


def _reaches_all_workers(strategy: tf.distribute.Strategy) -> bool:
    if not trains_on_servers(strategy):
        return True
    config = strategy.extended.config
    return config.num_aggregate == config.workers


def _fraction(own: tf.Tensor, name: str) -> tf.Tensor:
    """Returns this replica's fraction of the sum of a number, float64[], over all replicas.

    Parameter servers continue without a worker that they have lost, and enlarge the sum of the
    gradients accordingly. Here such a worker counts as one with an average number.

    Args:
      own: a scalar.
      name: of the tensor that is exchanged; errors contain it.
    """
    replica = replica_with_peers()
    assert replica is not None  # a training step of other strategies has no weight
    own = tf.cast(own, tf.float64)
    if local_updates_of(replica.strategy) is not None:
        # A worker that trains alone has the mean of its own rows.
        return tf.where(own > 0, tf.constant(1 / replica.num_replicas_in_sync, tf.float64), 0.0)
    ours = tf.stack([own, 1.0], name=name)
    with named(f"the {name.replace('_', ' ')} of each worker"):
        total, present = tf.unstack(replica.all_reduce("SUM", ours))
    if elastic_job_of(replica.strategy) is not None:
        return tf.math.divide_no_nan(own, total)
    return tf.math.divide_no_nan(own * present, total * replica.num_replicas_in_sync)


def _divisor(
    values: tf.Tensor,
    sample_weight: tf.Tensor | None,
    mask: tf.Tensor | None,
    reduction: str | None,
    dtype: str | None,
) -> Callable[[], tf.Tensor] | None:
    """Returns a function that makes the number by which Keras divides a loss.

    `None` if the number is proportional to the rows, or if the loss is not divided.
    """

    def tensor(value: tf.Tensor | float | None) -> Any:
        of = dtype or ops.convert_to_tensor(values).dtype
        return None if value is None else ops.convert_to_tensor(value, dtype=of)

    if reduction in _MEANS and mask is not None:
        return lambda: ops.sum(tensor(mask))
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weights = functools.partial(losses.apply_mask, reduction=reduction)
        return lambda: ops.sum(
            weights(tensor(sample_weight), tensor(mask), dtype=tensor(1.0).dtype)
        )
    return None


@functools.cache
def _warn_of_function() -> None:
    _log.warning(
        "fit: a loss is reduced in a tf.function that train_step calls. It cannot know how many "
        "rows each replica has: all replicas weigh the same. Remove that tf.function; fit compiles "
        "the whole step"
    )


@functools.cache
def _warn_of_branch() -> None:
    _log.warning(
        "fit: a loss with a mask or with reduction='mean_with_sample_weight' is reduced in a "
        "branch or a loop of train_step, where replicas cannot exchange what it is divided by. "
        "Replicas weigh by their rows"
    )
