"""Small models, data and the oracle of the training tests.

The oracle: N replicas x batch B equal one process x batch N*B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist

COLUMNS, CLASSES = 6, 3
EXACT = 1e-6  # SGD and momentum
ADAPTIVE = 5e-6  # Adam divides by a small number, which enlarges the rounding


class RowCounter(keras.metrics.Metric):
    """Counts rows; its result is its variable, as in the example of Keras's documentation."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], self.dtype))

    def result(self):
        return self.total


def examples(rows: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Makes features [rows, COLUMNS] and labels int32[rows] that a small model can learn."""
    random = np.random.default_rng(7)
    truth = random.normal(size=(COLUMNS, CLASSES))
    features = random.normal(size=(rows, COLUMNS))
    labels = np.argmax(features @ truth, axis=1)
    return features.astype(dtype), labels.astype("int32")


def dataset(rows: int, batch: int) -> tf.data.Dataset:
    """Makes `examples(rows)` as a dataset of global batches."""
    return tf.data.Dataset.from_tensor_slices(examples(rows)).batch(batch)


def batches(
    features: np.ndarray, labels: np.ndarray, size: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cuts arrays into global batches of `size` rows, the last one short."""
    starts = range(0, len(features), size)
    return [(features[i : i + size], labels[i : i + size]) for i in starts]


def classifier(optimizer: Any, *, library: Any = keras, middle: Sequence = (), **compiled) -> Any:
    """Makes a compiled classifier of `examples`; its layers are built by the first batch.

    Args:
      optimizer: as for `compile`.
      library: `keras` or `tf_keras`.
      middle: layers between the two dense ones.
      **compiled: further arguments of `compile`.
    """
    layers = library.layers
    model = library.Sequential([layers.Dense(8, activation="tanh"), *middle, layers.Dense(CLASSES)])
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **{"metrics": ["accuracy"], **compiled})
    return model


def built_classifier(optimizer: Any, **options) -> Any:
    """Makes a `classifier` whose weights are built."""
    model = classifier(optimizer, **options)
    model.build((None, COLUMNS))
    return model


def normalized_classifier() -> Any:
    """Makes a `built_classifier` that normalizes over the batch."""
    return built_classifier(
        keras.optimizers.SGD(0.05, momentum=0.9),
        middle=[keras.layers.BatchNormalization(momentum=0.8)],
    )


def train_like_one_process(
    ctx: Any,
    build: Callable[[], Any],
    fit: Callable[[Any], Any],
    tolerance: float = EXACT,
    library: Any = keras,
    **options: Any,
) -> Any:
    """Trains on all ranks and, before that, on rank 0 alone; asserts that both give the same.

    Every rank starts from its own seed, so the weights can agree only if rank 0's were given to
    all.

    Args:
      ctx: the rank's context.
      build: makes a compiled model.
      fit: trains it and returns its History, with datasets and batch sizes of all workers together.
      tolerance: the largest difference allowed in any weight, slot or history entry.
      library: `keras` or `tf_keras`.
      **options: of the strategy.

    Returns:
      The trained model.
    """
    alone = history_alone = None
    if ctx.rank == 0:
        library.utils.set_random_seed(0)
        alone = build()
        history_alone = fit(alone).history
    strategy = tfdist.MultiWorkerMirroredStrategy(**options)
    assert strategy.num_replicas_in_sync == ctx.size
    library.utils.set_random_seed(ctx.rank)
    with strategy.scope():
        model = build()
    history = fit(model).history
    # On every rank, because reading averaged variables is a collective.
    weights, optimizer_slots = model.get_weights(), slots(model)
    if alone is not None:
        _assert_same(weights, optimizer_slots, history, alone, history_alone, tolerance)
    return model


def train_like_no_strategy(
    strategy: tf.distribute.Strategy,
    build: Callable[[], Any],
    fit: Callable[[Any], Any],
    tolerance: float = EXACT,
    library: Any = keras,
) -> Any:
    """Trains without a strategy and then with one; asserts that both give the same.

    Args:
      strategy: has several devices of this process.
      build: makes a compiled model.
      fit: trains it and returns its History, with global batches.
      tolerance: the largest difference allowed in any weight, slot or history entry.
      library: `keras` or `tf_keras`.

    Returns:
      The model trained with the strategy.
    """
    library.utils.set_random_seed(0)
    alone = build()
    history_alone = fit(alone).history
    library.utils.set_random_seed(0)
    with strategy.scope():
        model = build()
    history = fit(model).history
    _assert_same(model.get_weights(), slots(model), history, alone, history_alone, tolerance)
    return model


def _assert_same(weights, optimizer_slots, history, alone, history_alone, tolerance) -> None:
    assert difference(weights, alone.get_weights()) <= tolerance
    assert difference(optimizer_slots, slots(alone)) <= tolerance
    assert history.keys() == history_alone.keys()
    for name in history:
        assert difference([history[name]], [history_alone[name]]) <= tolerance, name


def slots(model: Any) -> list[np.ndarray]:
    """Returns the values of the optimizer's variables, its iteration count among them."""
    variables = model.optimizer.variables
    return [np.asarray(v) for v in (variables() if callable(variables) else variables)]


def difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Returns the largest absolute difference between two lists of arrays of the same shapes."""
    left, right = [np.asarray(a) for a in left], [np.asarray(a) for a in right]
    assert [a.shape for a in left] == [a.shape for a in right]
    # The sum keeps a NaN, which max() might drop.
    assert np.isfinite(sum(np.sum(np.abs(a - b)) for a, b in zip(left, right, strict=True)))
    return max(
        (float(np.max(np.abs(a - b))) for a, b in zip(left, right, strict=True) if a.size),
        default=0.0,
    )


def identical(results: list[list[np.ndarray]]) -> None:
    """Asserts that all ranks returned the same bits: a `check` of on_ranks."""
    assert results[0], "expected at least one array from every rank"
    for rank, arrays in enumerate(results):
        assert len(arrays) == len(results[0])
        for position, (array, first) in enumerate(zip(arrays, results[0], strict=True)):
            ours, theirs = np.asarray(array), np.asarray(first)
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert ours.tobytes() == theirs.tobytes(), f"rank {rank}, array {position}"


def shares(values: np.ndarray, replicas: int) -> list[np.ndarray]:
    """Splits a global batch as TensorFlow does: equal shares, the last ones short or empty."""
    size = -(-len(values) // replicas)
    return [values[i * size : (i + 1) * size] for i in range(replicas)]


def train_by_replica_means(
    model: Any,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    replicas: int,
    of_replica: Callable[[tf.Tensor], tf.Tensor] = lambda gradient: gradient,
) -> None:
    """Trains without a strategy as `replicas` replicas do together.

    In each step every replica sees its share of the batch. Its gradient is the gradient of its
    share's mean loss, times the share's fraction of the batch; an empty share's is zero. Their sum
    is applied. Each replica has non-trainable variables of its own; in the end they become the
    replicas' mean.

    Args:
      model: a built and compiled model.
      batches: global batches of features and labels.
      replicas: how many there are.
      of_replica: transforms a replica's gradient of one variable before the sum.
    """
    states = [[v.numpy() for v in model.non_trainable_variables]] * replicas
    for features, labels in batches:
        gradients = []
        for replica in range(replicas):
            x, y = shares(features, replicas)[replica], shares(labels, replicas)[replica]
            if not len(x):
                gradients.append([tf.zeros(v.shape, v.dtype) for v in model.trainable_variables])
                continue
            _assign(model.non_trainable_variables, states[replica])
            with tf.GradientTape() as tape:
                loss = model.loss(y, model(x, training=True)) * (len(x) / len(features))
            variables = [v.value for v in model.trainable_variables]
            gradients.append([of_replica(g) for g in tape.gradient(loss, variables)])
            states[replica] = [v.numpy() for v in model.non_trainable_variables]
        sums = [tf.add_n(g) for g in _by_variable(gradients)]
        model.optimizer.apply(sums, model.trainable_variables)
    _assign(model.non_trainable_variables, [np.mean(s, axis=0) for s in _by_variable(states)])


def train_by_clipped_means(
    model: Any, global_batches: Iterable[tuple[np.ndarray, np.ndarray]], limit: float
) -> None:
    """Trains without a strategy as two replicas that each clip their gradients to norm `limit`."""
    clipped = []

    def clip(gradient):
        clipped.append(bool(tf.norm(gradient) > limit))
        return tf.clip_by_norm(gradient, limit)

    train_by_replica_means(model, global_batches, 2, clip)
    assert any(clipped) and not all(clipped), np.mean(clipped)


def _assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _by_variable(per_replica: list[list]) -> list[tuple]:
    return list(zip(*per_replica, strict=True))
