"""The order of arrays, which `fit` shuffles: the same in all workers."""

from __future__ import annotations

import contextlib
import contextvars
import random
from collections.abc import Iterator

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.eager import context
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfdist import ops
from tfdist.keras.registry import hooks
from tfdist.keras.workers import trains_on_servers

_strategy: contextvars.ContextVar[tf.distribute.Strategy | None]
_strategy = contextvars.ContextVar("strategy", default=None)
_DRAWN = -1  # the seed of a worker that has none


@hooks(TFEpochIterator, "__init__")
def note_strategy(original, self, distribute_strategy=None, *args, **kwargs):
    """The adapter of arrays learns which strategy they are for."""
    before = _strategy.set(distribute_strategy)
    try:
        original(self, distribute_strategy, *args, **kwargs)
    finally:
        _strategy.reset(before)


@hooks(ArrayDataAdapter, "get_tf_dataset")
def shuffle_alike(original, self):
    """`fit` shuffles arrays in the same order on all workers, each of which takes its share.

    Without a common seed some rows would go to two workers, and others to none. With the chief's
    seed the order is that of Keras alone. If the chief has no seed it draws one, and, as in Keras
    alone, each epoch has another order.
    """
    common = common_seed(_strategy.get()) if self._shuffle else None
    if common is None:
        return original(self)
    seed, is_drawn = common
    if not is_drawn:
        with global_seed(seed):
            return original(self)
    # The dataset reads it; a tf.Variable would be the strategy's.
    self.epochs_shuffled = ResourceVariable(0, dtype=tf.int64, trainable=False)
    with _shuffles_by(seed, self.epochs_shuffled):
        return original(self)


def common_seed(strategy: tf.distribute.Strategy | None) -> tuple[int, bool] | None:
    """A seed that all workers share, and whether it was drawn; `None` where there is one worker."""
    own = context.global_seed()
    seed = [_DRAWN if own is None else int(own), random.SystemRandom().getrandbits(31)]
    communicator = getattr(strategy, "communicator", None)
    if communicator is not None:
        with tf.device("/device:CPU:0"):
            given, drawn = ops.broadcast(
                tf.constant(seed, tf.int64), communicator, label="the seed of fit"
            ).numpy()
        return (int(drawn), True) if given == _DRAWN else (int(given), False)
    if strategy is None or not trains_on_servers(strategy) or strategy.extended.config.workers == 1:
        return None
    if own is not None:
        return seed[0], False
    return strategy.extended.parameters.first_of_all(seed[1]), True


@contextlib.contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Sets TensorFlow's global seed for the duration of a `with` block."""
    of_context = context.context()
    before = {name: getattr(of_context, name, None) for name in ("_seed", "_rng")}
    of_context._set_global_seed(seed)
    try:
        yield
    finally:
        vars(of_context).update(before)


@contextlib.contextmanager
def _shuffles_by(seed: int, times: ResourceVariable) -> Iterator[None]:
    """Makes functions that are traced within shuffle by a seed and a count of epochs.

    A seeded `tf.random.shuffle` of a dataset gives each epoch the same order.
    """
    original = tf.random.shuffle

    def shuffle(value, *_, **__):
        return tf.random.experimental.stateless_shuffle(
            value, tf.stack([tf.constant(seed, tf.int64), times.assign_add(1)])
        )

    tf.random.shuffle = shuffle
    try:
        yield
    finally:
        tf.random.shuffle = original
