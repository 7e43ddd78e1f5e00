"""Estimators of the multi-process tests: models, inputs, hooks, and the oracle.

The oracle: N workers x batch B equal an Estimator without a strategy x batch N*B.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.training import models
from tfdist import estimator

v1 = tf.compat.v1
ROWS, BATCH = 960, 24
STEPS = 50
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
}
TOLERANCES = {"sgd": models.EXACT, "momentum": models.EXACT, "adam": models.ADAPTIVE}
STRATEGIES = {
    "all_reduce": tfdist.MultiWorkerMirroredStrategy,
    "sync": functools.partial(tfdist.ParameterServerStrategy, mode="sync"),
    "async": tfdist.ParameterServerStrategy,
}


def input_fn(
    batch: int = BATCH, batches: int | Sequence[int] | None = None, rows: int = ROWS
) -> Callable[..., tf.data.Dataset]:
    """Returns an input_fn in which each worker has every n-th row, and its share of a batch.

    Args:
      batch: rows of all workers together.
      batches: how many there are, or by worker; without end by default.
      rows: of `models.examples`, again and again.
    """

    def make(input_context=None) -> tf.data.Dataset:
        features, labels = models.examples(rows)
        data = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
        workers, mine = 1, 0
        if input_context is not None:
            workers, mine = input_context.num_input_pipelines, input_context.input_pipeline_id
        count = batches if batches is None or isinstance(batches, int) else batches[mine]
        data = data.shard(workers, mine).repeat().batch(batch // workers)
        return data if count is None else data.take(count)

    return make


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """Two layers and an optimizer of TensorFlow 1.

    Args:
      features: of `input_fn`.
      labels: likewise.
      mode: of the Estimator.
      params: "optimizer", and "normalized", which adds moving statistics: the number of rows that
        are normalized together, as a worker does with its part of a batch, or `None` for all.
        The statistics are those parts' mean.
    """
    trains = mode == estimator.ModeKeys.TRAIN
    # With the same seed of the graph, the values are the same in every graph.
    initializer = v1.glorot_uniform_initializer(seed=5)
    with v1.variable_scope("layers"):
        first = v1.get_variable("first", [models.COLUMNS, 8], initializer=initializer)
        bias = v1.get_variable("bias", [8], initializer=v1.zeros_initializer())
        second = v1.get_variable("second", [8, models.CLASSES], initializer=initializer)
    hidden = tf.tanh(features["x"] @ first + bias)
    if "normalized" in params:
        hidden = v1.layers.batch_normalization(
            hidden, momentum=0.8, training=trains, virtual_batch_size=params["normalized"]
        )
    logits = hidden @ second
    predictions = {"logits": logits}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    train_op = None
    if trains:
        optimizer = OPTIMIZERS[params.get("optimizer", "sgd")]()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    return estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": accuracy}
    )


def object_model_fn(features: Any, labels: Any, mode: str) -> Any:
    """As `model_fn`, in objects of tf_keras that a `tf.train.Checkpoint` saves."""
    import tf_keras

    net = tf_keras.Sequential(
        [tf_keras.layers.Dense(8, "tanh", name="first"), tf_keras.layers.Dense(models.CLASSES)]
    )
    logits = net(features["x"])
    step = v1.train.get_global_step()
    optimizer = tf_keras.optimizers.legacy.Adam(0.01)
    optimizer.iterations = step
    scaffold = v1.train.Scaffold(saver=tf.train.Checkpoint(step=step, net=net, adam=optimizer))
    predictions = {"logits": logits}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(
            mode, predictions=predictions, export_outputs=outputs, scaffold=scaffold
        )
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    train_op = None
    if mode == estimator.ModeKeys.TRAIN:
        # Optimizers of tf_keras add the replicas' gradients.
        part = loss / tf.distribute.get_strategy().num_replicas_in_sync
        train_op = tf.group(*optimizer.get_updates(part, net.trainable_variables))
    accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metric_ops={"accuracy": accuracy},
        scaffold=scaffold,
    )


def keras_model(seed: int = 0) -> keras.Model:
    """Makes a compiled model of Keras 3, whose weights depend on the seed."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((models.COLUMNS,), name="x"),
            layers.Dense(8, activation="tanh", name="hidden", bias_initializer="uniform"),
            layers.Dense(models.CLASSES, name="logits", bias_initializer="uniform"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


# Estimators by how their checkpoints name values: "objects" and "keras" by objects.
MODELS = {
    "model_fn": lambda config: estimator.Estimator(
        model_fn, config=config, params={"optimizer": "adam"}
    ),
    "objects": lambda config: estimator.Estimator(object_model_fn, config=config),
    "keras": lambda config: estimator.model_to_estimator(keras_model(), config=config),
    "saver": lambda config: estimator.model_to_estimator(
        keras_model(), config=config, checkpoint_format="saver"
    ),
}


def make(directory: Path, strategy: Any = None, seed: int = 0, **options: Any) -> Any:
    """Makes an Estimator of `model_fn`.

    Args:
      directory: of the model.
      strategy: of the training.
      seed: of the graph.
      **options: of `model_fn` if it knows them, else of the `RunConfig`.
    """
    params = {n: options.pop(n) for n in ("optimizer", "normalized") if n in options}
    return estimator.Estimator(
        model_fn, params=params, config=config(directory, strategy, seed, **options)
    )


def config(directory: Path, strategy: Any = None, seed: int = 0, **options: Any) -> Any:
    """Makes a `RunConfig`; without a strategy, for a process without a cluster."""
    options = {"save_summary_steps": None, "log_step_count_steps": None, **options}
    with alone() if strategy is None else contextlib.nullcontext():
        return estimator.RunConfig(
            str(directory), tf_random_seed=seed, train_distribute=strategy, **options
        )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Removes this process from its cluster within."""
    saved = os.environ.pop("TF_CONFIG", None)
    try:
        yield
    finally:
        if saved is not None:
            os.environ["TF_CONFIG"] = saved


def saved(directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """Returns a checkpoint's variables, the latest one's unless a step is given."""
    path = tf.train.latest_checkpoint(str(directory)) if step is None else None
    path = path or str(Path(directory) / f"model.ckpt-{step}")
    return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def numbers(directory: Path) -> dict[str, np.ndarray]:
    """Returns what the latest checkpoint holds, but the description of its objects."""
    values = saved(directory)
    return {name: value for name, value in values.items() if np.asarray(value).dtype.kind in "fi"}


def checkpoints(directory: Path) -> list[int]:
    """Returns the steps of the existing checkpoints."""
    found = Path(directory).glob("model.ckpt-*.index")
    return sorted(int(path.stem.rpartition("-")[2]) for path in found)


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray], tolerance: float) -> None:
    """Asserts that two checkpoints have the same variables and values."""
    assert left.keys() == right.keys()
    for name in left:
        difference = models.difference([left[name]], [right[name]])
        assert difference <= tolerance, (name, difference)


class Seen(v1.train.SessionRunHook):
    """Records the variables' values during a training.

    Args:
      strategy: of the training.

    Attributes:
      first: the values that the first step sees.
      steps: a list of values for each step, which it leaves in this worker.
      last: the values in the end.
      names: the variables'.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._of_servers = isinstance(strategy, tfdist.ParameterServerStrategy)
        self.first: list[np.ndarray] = []
        self.steps: list[list[np.ndarray]] = []
        self.last: list[np.ndarray] = []

    def begin(self) -> None:
        """Adds the reads to the graph."""
        if self._of_servers:
            self._pull = self._strategy.extended.parameters.pull_all(begins_step=False)
        local = self._strategy.experimental_local_results
        variables = v1.global_variables()
        self.names = [v.name.removesuffix(":0") for v in variables]
        self._values = [local(v)[0].read_value() for v in variables]

    def before_run(self, run_context: Any) -> None:
        """Before each step."""
        if not self.steps:
            self.first = self._read(run_context.session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """After each step."""
        self.steps.append(run_context.session.run(self._values))

    def end(self, session: Any) -> None:
        """After the last step."""
        self.last = self._read(session)

    def _read(self, session: Any) -> list[np.ndarray]:
        if self._of_servers:
            session.run(self._pull)
        return session.run(self._values)

    def all(self, without: Sequence[str] = ()) -> list[np.ndarray]:
        """Returns the recorded values except some variables, for `models.identical`."""
        return [
            value
            for values in [self.first, *self.steps, self.last]
            for name, value in zip(self.names, values, strict=True)
            if name not in without
        ]


class Steps(v1.train.SessionRunHook):
    """Counts a worker's steps, and requests a stop after some of them.

    Args:
      stop_after: how many; `None` is never.
      slowness: seconds that each step takes longer.

    Attributes:
      count: of its steps so far.
    """

    def __init__(self, stop_after: int | None = None, slowness: float = 0.0) -> None:
        self.count = 0
        self._stop_after = stop_after
        self._slowness = slowness

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """After each step."""
        self.count += 1
        time.sleep(self._slowness)
        if self.count == self._stop_after:
            run_context.request_stop()
