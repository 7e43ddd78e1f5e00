"""The order of arrays, which `fit` shuffles: the same in all workers, that of the chief's seed."""

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

from tfdist import ops
from tfdist.keras.workers import trains_on_servers

_strategy: contextvars.ContextVar[tf.distribute.Strategy | None]
_strategy = contextvars.ContextVar("strategy", default=None)


def shuffle_alike() -> None:
    """Not a defect of Keras: `fit` shuffles arrays, and each worker takes a share of its own order.

    Without a common seed some rows would go to two workers, and others to none.
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
        with _seed_of_all(_strategy.get()) if self._shuffle else contextlib.nullcontext():
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
        strategy = tf.distribute.get_strategy()
        with _seed_of_all(strategy) if shuffle else contextlib.nullcontext():
            make(self, *args, shuffle=shuffle, **kwargs)

    TensorLikeDataAdapter.__init__ = __init__


@contextlib.contextmanager
def _seed_of_all(strategy: tf.distribute.Strategy | None) -> Iterator[None]:
    """Within, TensorFlow's global seed is one that all workers of the strategy have."""
    of_context = context.context()
    own = {name: getattr(of_context, name, None) for name in ("_seed", "_rng")}
    seed = own["_seed"]
    seed = random.SystemRandom().getrandbits(31) if seed is None else int(seed)
    communicator = getattr(strategy, "communicator", None)
    if communicator is not None:
        seed = int(ops.broadcast(tf.constant(seed, tf.int64), communicator, label="fit's seed"))
    elif trains_on_servers(strategy) and strategy.extended.config.workers > 1:
        seed = strategy.extended.parameters.first_of_all(seed)
    else:
        yield
        return
    of_context._set_global_seed(seed)
    try:
        yield
    finally:
        vars(of_context).update(own)
