"""Repairs of `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import functools

import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.trainer import Trainer
from tensorflow.python.distribute.values import PerReplicaSpec
from tensorflow.python.framework.none_tensor import NoneTensorSpec

from tfdist.keras.workers import communicator_of, has_copies, replica_with_copies


def take_datasets_from_functions() -> None:
    """Keras 3.8 does not know what `distribute_datasets_from_function` returns as a dataset."""
    original = data_adapters.is_tf_dataset
    data_adapters.is_tf_dataset = lambda x: (
        original(x) or isinstance(x, tf.distribute.DistributedDataset)
    )


def build_from_local_batch() -> None:
    """keras-team/keras#20585, tensorflow/tensorflow#72388: `fit` on several workers fails.

    To learn the shapes of a batch, `_maybe_symbolic_build` reduces the whole nested batch over all
    workers, which `tf.distribute.Strategy.reduce` does not take, and which would average strings
    and labels. A dataset tells the shapes without a batch. To look at one would open the dataset
    once more, after which a `shuffle` has another order than without a strategy, and a Python
    generator has lost a batch.
    """
    original = TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if self._distribute_strategy is not None and iterator is not None:
            data_batch = _shapes_of_replica(self, iterator)
            iterator = None
        return original(self, iterator=iterator, data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _shapes_of_replica(model, epoch_iterator):
    """What has the shapes and dtypes of a replica's batch: specs, or such a batch."""
    strategy = model._distribute_strategy
    # Not `element_spec`, which fails where each of several workers has one device.
    specs = tree.map_structure(_spec_of_replica, epoch_iterator._distributed_dataset._element_spec)
    # What Python yields cannot be read again.
    yields_once = hasattr(epoch_iterator.data_adapter, "_output_signature")
    shapes = [spec.shape for spec in tree.flatten(specs) if spec is not None]
    ranks_known = all(shape.rank is not None for shape in shapes)
    # Layers may be made for sizes that only a batch tells.
    is_built = all(layer.built for layer in model._flatten_layers())
    if yields_once or (
        ranks_known and (is_built or all(None not in shape[1:].as_list() for shape in shapes))
    ):
        return specs
    # Before the iterator come one or two numbers, which depends on the release of Keras.
    for *_, iterator in epoch_iterator:
        return tree.map_structure(
            lambda value: (
                strategy.experimental_local_results(value)[0]
                if isinstance(value, tf.distribute.DistributedValues)
                else value
            ),
            next(iterator),
        )
    return None


def _spec_of_replica(spec):
    if isinstance(spec, PerReplicaSpec):
        spec = spec._value_specs[0]
    # There are no sample weights, or no labels.
    return None if isinstance(spec, tf.OptionalSpec | NoneTensorSpec) else spec


def log_metrics_of_all_replicas() -> None:
    """keras-team/keras#19891: what `fit` shows after a batch is the mean of the replicas' metrics.

    That is wrong where they saw different numbers of rows, and for all metrics that are not means.
    The replicas of one process add their metrics' state instead, as at the end of an epoch. Those
    of several workers do not: it would be one more collective per step.
    """
    original = Trainer.get_metrics_result

    @functools.wraps(original)
    def get_metrics_result(self):
        replica = replica_with_copies()
        if replica is None or communicator_of(self) is not None:
            return original(self)
        return replica.merge_call(lambda strategy: original(self))

    Trainer.get_metrics_result = get_metrics_result


def copy_what_python_yields() -> None:
    """`fit` writes into the caller's arrays that a generator or a `PyDataset` yields slices of.

    A tensor made of an array with aligned memory shares that memory, and where replicas part a
    batch TensorFlow takes the tensor for a temporary, in whose memory a result may be put.
    """
    for adapter in (GeneratorDataAdapter, PyDatasetAdapter):
        _copy_batches_of(adapter)


def _copy_batches_of(adapter: type) -> None:
    original = adapter.get_tf_dataset

    @functools.wraps(original)
    def get_tf_dataset(self):
        return original(self).map(_copy_numbers)

    adapter.get_tf_dataset = get_tf_dataset


def _copy_numbers(*batch):
    def copy(leaf):
        is_number = isinstance(leaf, tf.Tensor) and (
            leaf.dtype.is_floating or leaf.dtype.is_integer
        )
        return tf.raw_ops.DeepCopy(x=leaf) if is_number else leaf

    return tf.nest.map_structure(copy, batch, expand_composites=True)


def predict_on_batch_once() -> None:
    """`predict_on_batch` returns every row once per device: each predicts the whole batch."""
    original = TensorFlowTrainer.predict_on_batch

    @functools.wraps(original)
    def predict_on_batch(self, x):
        predicted = original(self, x)
        strategy = self.distribute_strategy
        if not has_copies(strategy) or communicator_of(self) is not None:
            return predicted
        replicas = strategy.num_replicas_in_sync
        return tree.map_structure(lambda rows: rows[: rows.shape[0] // replicas], predicted)

    TensorFlowTrainer.predict_on_batch = predict_on_batch
