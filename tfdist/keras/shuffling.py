"""The order of arrays, which `fit` shuffles: the same in all workers."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import random
import sys
from collections.abc import Iterator

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.eager import context
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfdist import ops
from tfdist.keras.workers import trains_on_servers

_strategy: contextvars.ContextVar[tf.distribute.Strategy | None]
_strategy = contextvars.ContextVar("strategy", default=None)
_DRAWN = -1  # of a worker that has no seed


def shuffle_alike() -> None:
    """Not a defect of Keras: `fit` shuffles arrays, and each worker takes a share of its own order.

    Without a common seed some rows would go to two workers, and others to none. With the chief's
    seed the order is that of Keras alone. Without one the chief draws it, and, as in Keras alone,
    each epoch has another order.
    """
    prepare, shuffled = TFEpochIterator.__init__, ArrayDataAdapter.get_tf_dataset

    @functools.wraps(prepare)
    def __init__(self, distribute_strategy=None, *args, **kwargs):
        before = _strategy.set(distribute_strategy)
        try:
            prepare(self, distribute_strategy, *args, **kwargs)
        finally:
            _strategy.reset(before)

    @functools.wraps(shuffled)
    def get_tf_dataset(self):
        common = _common_seed(_strategy.get()) if self._shuffle else None
        if common is None:
            return shuffled(self)
        seed, is_drawn = common
        if not is_drawn:
            with _global_seed(seed):
                return shuffled(self)
        # The dataset reads it; a tf.Variable would be the strategy's.
        self.epochs_shuffled = ResourceVariable(0, dtype=tf.int64, trainable=False)
        with _shuffles_by(seed, self.epochs_shuffled):
            return shuffled(self)

    TFEpochIterator.__init__ = __init__
    ArrayDataAdapter.get_tf_dataset = get_tf_dataset
    if "tf_keras" in sys.modules:
        _shuffle_alike_in_tf_keras()


@functools.cache
def _shuffle_alike_in_tf_keras() -> None:
    from tf_keras.src.engine.data_adapter import TensorLikeDataAdapter

    make = TensorLikeDataAdapter.__init__

    @functools.wraps(make)
    def __init__(self, *args, shuffle=False, **kwargs):
        common = _common_seed(tf.distribute.get_strategy()) if shuffle else None
        # All epochs are one dataset there, with a seed of which each has another order.
        with contextlib.nullcontext() if common is None else _global_seed(common[0]):
            make(self, *args, shuffle=shuffle, **kwargs)

    TensorLikeDataAdapter.__init__ = __init__


def _common_seed(strategy: tf.distribute.Strategy | None) -> tuple[int, bool] | None:
    """A seed that all workers of a strategy have, and whether it was drawn; `None`: no others."""
    own = context.global_seed()
    seed = [_DRAWN if own is None else int(own), random.SystemRandom().getrandbits(31)]
    communicator = getattr(strategy, "communicator", None)
    if communicator is not None:
        with tf.device("/device:CPU:0"):
            given, drawn = ops.broadcast(
                tf.constant(seed, tf.int64), communicator, label="the seed of fit"
            ).numpy()
        return (int(drawn), True) if given == _DRAWN else (int(given), False)
    if not trains_on_servers(strategy) or strategy.extended.config.workers == 1:
        return None
    if own is not None:
        return seed[0], False
    return strategy.extended.parameters.first_of_all(seed[1]), True


@contextlib.contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Within, TensorFlow's global seed is this one."""
    of_context = context.context()
    before = {name: getattr(of_context, name, None) for name in ("_seed", "_rng")}
    of_context._set_global_seed(seed)
    try:
        yield
    finally:
        vars(of_context).update(before)


@contextlib.contextmanager
def _shuffles_by(seed: int, times: ResourceVariable) -> Iterator[None]:
    """Within, what is traced shuffles by a seed and by how often it was done.

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
