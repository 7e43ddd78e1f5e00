"""Optimizers of `Sharding`: each worker has the slots of its part, and updates that part.

    gradients    reduce_scatter    part of the sums, clipped
                                        |   update_step of the optimizer's class
    variables    all_gather        part of the new values

`update_step` works on a part as on a variable: it gets the part's value as a tensor, and assigns it
by `self.assign` and the like, where the new value is caught. So every optimizer that treats each
element on its own works unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import optimizers
from keras.callbacks import SwapEMAWeights
from keras.layers import Layer
from keras.optimizers import LossScaleOptimizer

from tfdist._types import Gradient, KerasOptimizer, KerasVariable
from tfdist.internals.keras_3 import BaseOptimizer, TFOptimizer
from tfdist.keras.hooks.clipping import clips
from tfdist.keras.hooks.table_gradients import table_of
from tfdist.keras.models import tf_variable
from tfdist.keras.registry import hooks
from tfdist.keras.strategies import VariableParts, shards_of
from tfdist.keras.workers import is_ours, is_part
from tfdist.ps.variable_scopes import Role, current_role, made_as

# By exact class, since a subclass may do something else.
_ELEMENTWISE = (
    optimizers.SGD,
    optimizers.Adam,
    optimizers.AdamW,
    optimizers.Adamax,
    optimizers.Nadam,
    optimizers.RMSprop,
    optimizers.Adagrad,
    optimizers.Adadelta,
    optimizers.Ftrl,
    optimizers.Lion,
)
_ACCUMULATOR = "gradient_accumulator"
_thread = threading.local()


@dataclasses.dataclass
class _Update:
    """The part of a variable that is being updated.

    Attributes:
      value: before the update.
      variable: of which it is a part.
      updated: the value after the update; `None` until it is assigned.
    """

    value: tf.Tensor
    variable: tf.Variable
    updated: tf.Tensor | None = None


def _shards(optimizer: BaseOptimizer) -> VariableParts | None:
    strategy = optimizer._distribution_strategy
    return shards_of(strategy.extended) if is_ours(strategy) else None


@hooks(TFOptimizer, "add_variable_from_reference")
def make_parts(original, self, reference_variable, *args, **kwargs):
    """With `Sharding` an optimizer's slots are cut into one part for each worker."""
    shards = _shards(self)
    if shards is None or table_of(reference_variable) is not None:
        return original(self, reference_variable, *args, **kwargs)
    _check(self, shards)
    is_accumulator = (args[0] if args else kwargs.get("name")) == _ACCUMULATOR
    if is_accumulator and not _cuts_accumulators(self, shards):
        return original(self, reference_variable, *args, **kwargs)
    with made_as(Role.PART):
        return original(self, reference_variable, *args, **kwargs)


@hooks(BaseOptimizer, "add_variable")
def make_parts_of_slots(original, self, shape, *args, **kwargs):
    """As `make_parts`, for optimizers of older releases that make slots by their shape."""
    is_slot = len(shape) > 0 and math.prod(shape) > 0 and current_role() is None
    if not is_slot or _shards(self) is None:
        return original(self, shape, *args, **kwargs)
    with made_as(Role.PART):
        return original(self, shape, *args, **kwargs)


def _cuts_accumulators(optimizer: BaseOptimizer, shards: VariableParts) -> bool:
    return shards.sharding.stage > 1 and bool(optimizer.gradient_accumulation_steps)


def _check(optimizer: KerasOptimizer, shards: VariableParts) -> None:
    """Checks that a worker can update its part without the others."""
    known = (*_ELEMENTWISE, *shards.sharding.elementwise)
    if type(optimizer) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected an optimizer that updates each element on its "
            f"own with {shards.sharding}, which is {names}, received a {type(optimizer).__name__}. "
            "Sharding(elementwise=(YourOptimizer,)) declares it of a class of your own"
        )
    clips_replicas = optimizer._distribution_strategy.extended.clip == "replica"
    cuts_gradients = shards.sharding.stage == 3 or _cuts_accumulators(optimizer, shards)
    if cuts_gradients and clips(optimizer) and clips_replicas:
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected clip='sum' with {shards.sharding}, received "
            "clip='replica': no replica has its whole gradients"
        )


@hooks(BaseOptimizer, "_clip_gradients")
def leave_to_parts(original, self, grads):
    """With `Sharding` the parts of the gradients' sum are clipped, unless `clip="replica"`."""
    return grads if _clips_parts(self) else original(self, grads)


def _clips_parts(optimizer: BaseOptimizer) -> bool:
    clips_sums = _shards(optimizer) is not None and clips(optimizer)
    return clips_sums and optimizer._distribution_strategy.extended.clip == "sum"


@hooks(TFOptimizer, "_apply_weight_decay")
def leave_decay_to_parts(original, self, variables):
    """With `Sharding` each worker lets its part of a variable decay."""
    if _shards(self) is None:
        original(self, variables)


@hooks(BaseOptimizer, "_backend_apply_gradients")
def accumulate_parts(original, self, grads, trainable_variables):
    """With `Sharding(stage=2)` parts of the gradients' sums are accumulated."""
    shards = _shards(self)
    if shards is None or not _cuts_accumulators(self, shards):
        return original(self, grads, trainable_variables)
    dense = [i for i, variable in enumerate(trainable_variables) if table_of(variable) is None]
    parts = list(grads)
    own = _parts(shards, [grads[i] for i in dense], [trainable_variables[i] for i in dense])
    for i, part in zip(dense, own, strict=True):
        parts[i] = part
    return original(self, parts, trainable_variables)


def _parts(
    shards: VariableParts, grads: Sequence[Gradient], variables: Sequence[KerasVariable]
) -> list[tf.Tensor]:
    """This worker's part of each gradient's sum; back-propagation has summed parts' gradients."""
    parts = list(grads)
    whole = [i for i, variable in enumerate(variables) if not is_part(tf_variable(variable))]
    for i, part in zip(whole, shards.reduce_scatter([grads[i] for i in whole]), strict=True):
        parts[i] = part
    return parts


@hooks(BaseOptimizer, "apply")
@hooks(LossScaleOptimizer, "apply")
def gather_for_gradients(original, self, grads, trainable_variables=None):
    """With `Sharding(stage=3)` gradient functions use variables that are gathered for them."""
    strategy = tf.distribute.get_strategy()
    shards = shards_of(strategy.extended) if is_ours(strategy) else None
    if shards is not None:
        shards.gather_again()
    return original(self, grads, trainable_variables)


@hooks(Layer, "__call__")
def note_input(original, self, *args, **kwargs):
    """With `Sharding(stage=3)` the variables of a layer are gathered when it is due."""
    strategy = tf.distribute.get_strategy()
    shards = shards_of(strategy.extended) if is_ours(strategy) else None
    if shards is None:
        return original(self, *args, **kwargs)
    with shards.calling_layer(self.name, (args, kwargs)):
        return original(self, *args, **kwargs)


@hooks(tf, "recompute_grad")
def refuse_recomputation(original, f):
    """`Sharding(stage=3)` refuses layers that TensorFlow computes again."""
    recompute = original(f)

    @functools.wraps(f)
    def checked(*args, **kwargs):
        strategy = tf.distribute.get_strategy()
        shards = shards_of(strategy.extended) if is_ours(strategy) else None
        if shards is not None and shards.sharding.stage == 3:
            raise ValueError(
                "tf.recompute_grad, which also keras.remat calls: expected Sharding of stage 1 or "
                "2, or no recomputation, received stage 3, whose gradients are of gathered "
                "variables, but TensorFlow computes again with the parts"
            )
        return recompute(*args, **kwargs)

    return checked


@hooks(TFOptimizer, "_backend_increment_gradient_accumulators")
def add_parts(original, self, grads, acc_grads):
    """Accumulated parts are each worker's own."""
    shards = _shards(self)
    if shards is None or not _cuts_accumulators(self, shards):
        return original(self, grads, acc_grads)
    # Without tables, whose rows another hook accumulates.
    for gradient, accumulator in zip(grads, acc_grads, strict=True):
        tf_variable(accumulator).assign_add(gradient, read_value=False)


@hooks(BaseOptimizer, "_backend_reset_gradient_accumulators")
def reset_parts(original, self):
    """Accumulated parts are reset without a whole gradient of zeros."""
    shards = _shards(self)
    if shards is None or not _cuts_accumulators(self, shards):
        return original(self)
    for accumulator in self._accumulated_gradients:
        if accumulator is None:
            continue
        part = getattr(accumulator, "value", None)
        if part is not None and is_part(part):
            part.assign(tf.zeros(part.shape, part.dtype), read_value=False)
        else:  # of a table
            accumulator.assign(keras.ops.zeros(accumulator.shape, dtype=accumulator.dtype))


@hooks(TFOptimizer, "_backend_update_step")
def update_parts(original, self, grads, trainable_variables, learning_rate):
    """With `Sharding` each worker updates its part of the variables, and all gather the parts."""
    shards = _shards(self)
    if shards is None:
        return original(self, grads, trainable_variables, learning_rate)
    _check(self, shards)
    _check_tables(self, shards)
    _check_slots(self, shards)
    variables = [_component(self, variable) for variable in trainable_variables]
    are_parts = _cuts_accumulators(self, shards)
    parts = list(grads) if are_parts else _parts(shards, grads, trainable_variables)
    if _clips_parts(self):
        parts = _clipped(self, shards, parts)
    rate = self._distribution_strategy.experimental_local_results(learning_rate)[0]
    for bucket in shards.buckets(variables):
        new = [_updated(self, shards, parts[i], variables[i], rate) for i in bucket]
        _assign(shards, [variables[i] for i in bucket], new)


def _assign(shards: VariableParts, variables: list[tf.Variable], parts: list[tf.Tensor]) -> None:
    """Assigns variables of one dtype by this worker's parts."""
    pairs = list(zip(variables, parts, strict=True))
    for variable, part in pairs:
        if is_part(variable):
            variable.assign(part, read_value=False)
    whole = [(variable, part) for variable, part in pairs if not is_part(variable)]
    if whole:
        shards.assign([variable for variable, _ in whole], [part for _, part in whole])


def _component(optimizer: BaseOptimizer, variable: KerasVariable) -> tf.Variable:
    """This worker's copy of a variable."""
    strategy = optimizer._distribution_strategy
    return strategy.experimental_local_results(tf_variable(variable))[0]


def _check_tables(optimizer: BaseOptimizer, shards: VariableParts) -> None:
    if _clips_parts(optimizer) and any(
        table_of(variable) is not None for variable in optimizer._trainable_variables
    ):
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected no clipping with {shards.sharding} and "
            "embedding tables on servers, whose gradients would not be clipped"
        )


def _check_slots(optimizer: BaseOptimizer, shards: VariableParts) -> None:
    accumulators = {id(v) for v in getattr(optimizer, "_accumulated_gradients", ())}
    for variable in optimizer.variables:
        # A table's slots have no rows here; scalars, such as the step count, are not cut.
        is_slot = len(variable.shape) > 0 and math.prod(variable.shape) > 0
        is_whole = is_slot and not is_part(tf_variable(variable))
        if is_whole and id(variable) not in accumulators:
            raise ValueError(
                f"optimizer {optimizer.name!r}: expected slots that are cut, as {shards.sharding} "
                f"asks for, but {variable.path!r} was made outside of the strategy's scope. Build "
                "the optimizer in `with strategy.scope():`, or let `compile` and `fit` do it"
            )


def _updated(
    optimizer: TFOptimizer,
    shards: VariableParts,
    gradient: tf.Tensor,
    variable: tf.Variable,
    learning_rate: tf.Tensor | KerasVariable,
) -> tf.Tensor:
    """Returns a part of a variable's new value."""
    value = shards.part_of(variable, after=gradient)
    if optimizer.weight_decay is not None and optimizer._use_weight_decay(variable):
        decay = tf.cast(optimizer.weight_decay, value.dtype)
        value -= value * decay * tf.cast(optimizer.learning_rate, value.dtype)
    update = _thread.update = _Update(value, variable)
    try:
        optimizer.update_step(gradient, value, learning_rate)
    except AttributeError as error:
        if getattr(error, "obj", None) is not value:
            raise
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected an update_step that writes by self.assign, "
            f"self.assign_add or self.assign_sub with {shards.sharding}, but it calls "
            f"{error.name!r} of the variable"
        ) from error
    finally:
        _thread.update = None
    if update.updated is None:
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected its update_step to assign "
            f"{variable.name.partition(':')[0]!r}, which it does not"
        )
    return update.updated


def _update_of(variable: object) -> _Update | None:
    """The update of a part, if `variable` is that part."""
    update = getattr(_thread, "update", None)
    return update if update is not None and variable is update.value else None


@hooks(TFOptimizer, "_var_key")
def key_of_whole(original, self, variable):
    """A part has the slots and the settings of its variable."""
    update = _update_of(variable)
    return original(self, variable if update is None else update.variable)


@hooks(TFOptimizer, "assign")
def catch_value(original, self, variable, value):
    """The new value of a part is gathered by all workers."""
    update = _update_of(variable)
    if update is None:
        return original(self, variable, value)
    if update.updated is not None:
        raise ValueError(
            f"optimizer {self.name!r}: expected an update_step that assigns "
            f"{update.variable.name.partition(':')[0]!r} once, but it does so twice"
        )
    update.updated = tf.cast(tf.convert_to_tensor(value), update.value.dtype)


@hooks(TFOptimizer, "assign_add")
def catch_sum(original, self, variable, value):
    """As `catch_value`."""
    if _update_of(variable) is None:
        return original(self, variable, value)
    self.assign(variable, variable + tf.cast(value, variable.dtype))


@hooks(TFOptimizer, "assign_sub")
def catch_difference(original, self, variable, value):
    """As `catch_value`."""
    if _update_of(variable) is None:
        return original(self, variable, value)
    self.assign(variable, variable - tf.cast(value, variable.dtype))


def _clipped(
    optimizer: BaseOptimizer, shards: VariableParts, parts: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Clips parts as Keras clips whole gradients: a norm is over all workers' parts."""
    if optimizer.clipvalue is not None and optimizer.clipvalue > 0:
        limit = optimizer.clipvalue
        return [tf.clip_by_value(part, -limit, limit) for part in parts]
    # In which no square overflows.
    wide = tf.float64 if any(part.dtype == tf.float64 for part in parts) else tf.float32
    squares = tf.stack([tf.reduce_sum(tf.square(tf.cast(part, wide))) for part in parts])
    if optimizer.clipnorm is not None and optimizer.clipnorm > 0:
        norms = tf.sqrt(shards.sums(squares, "the norms of the gradients"))
        factors = optimizer.clipnorm / tf.maximum(norms, optimizer.clipnorm)
        factors = tf.unstack(factors, len(parts))
    else:
        limit = optimizer.global_clipnorm
        norm = tf.sqrt(shards.sums(tf.reduce_sum(squares), "the norm of the gradients"))
        factor = limit * tf.minimum(1.0 / norm, tf.constant(1.0 / limit, norm.dtype))
        # NaN if a gradient is not finite.
        factors = [factor + (norm - norm)] * len(parts)
    return [part * tf.cast(f, part.dtype) for part, f in zip(parts, factors, strict=True)]


@hooks(TFOptimizer, "_update_model_variables_moving_average")
def average_parts(original, self, trainable_variables):
    """With `Sharding` each worker has its part of the moving averages."""
    shards = _shards(self)
    if shards is None or not self.use_ema:
        return original(self, trainable_variables)
    for variable, average in _averages(self, trainable_variables):
        former = average.read_value()
        is_first = tf.equal(tf.convert_to_tensor(self.iterations), 0)
        momentum = tf.where(is_first, 0.0, self.ema_momentum)
        momentum = tf.cast(momentum, former.dtype)
        own = shards.part_of(variable, after=former)
        average.assign(momentum * former + (1 - momentum) * own, read_value=False)


@hooks(TFOptimizer, "_overwrite_model_variables_with_average_value")
def gather_averages(original, self, trainable_variables):
    """With `Sharding` all workers gather the moving averages into the variables."""
    shards = _shards(self)
    if shards is None:
        return original(self, trainable_variables)
    pairs = _averages(self, trainable_variables)
    variables = [variable for variable, _ in pairs]
    for bucket in shards.buckets(variables):
        averages = [pairs[i][1].read_value() for i in bucket]
        _assign(shards, [variables[i] for i in bucket], averages)


def _averages(
    optimizer: BaseOptimizer, trainable_variables: Sequence[KerasVariable]
) -> list[tuple[tf.Variable, tf.Variable]]:
    """Pairs of a variable and the part of its moving average."""
    averages = optimizer._model_variables_moving_average
    return [
        (_component(optimizer, variable), tf_variable(average))
        for variable, average in zip(trainable_variables, averages, strict=True)
        if average is not None
    ]


@hooks(SwapEMAWeights, "_tf_swap_variables")
def swap_parts(original, self, optimizer):
    """With `Sharding` the workers gather the moving averages that `SwapEMAWeights` swaps in."""
    shards = _shards(optimizer)
    if shards is None:
        return original(self, optimizer)
    for variable, average in _averages(optimizer, optimizer._trainable_variables):
        mean = tf.raw_ops.DeepCopy(x=average.read_value())
        # A slice would hold the memory of the whole variable.
        average.assign(tf.raw_ops.DeepCopy(x=shards.part_of(variable, after=mean)))
        _assign(shards, [variable], [mean])


@hooks(SwapEMAWeights, "_tf_finalize_ema_values")
def keep_swapped_parts(original, self, optimizer):
    """With `Sharding` each worker recovers its part of the moving averages."""
    shards = _shards(optimizer)
    if shards is None:
        return original(self, optimizer)
    for variable, average in _averages(optimizer, optimizer._trainable_variables):
        average.assign(tf.raw_ops.DeepCopy(x=shards.part_of(variable, after=average.read_value())))
