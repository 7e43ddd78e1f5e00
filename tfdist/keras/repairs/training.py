"""Repairs of `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import tensorflow as tf
from keras import tree

from tfdist.data import draws
from tfdist.internals.keras_3 import (
    ArrayDataAdapter,
    GeneratorDataAdapter,
    PyDatasetAdapter,
    TFEpochIterator,
    data_adapters,
)
from tfdist.internals.keras_3_trainer import TensorFlowTrainer, Trainer
from tfdist.internals.tensorflow import NoneTensorSpec, PerReplicaSpec
from tfdist.keras.deferred_models import is_deferred
from tfdist.keras.registry import repairs
from tfdist.keras.repairs.scopes import adopt_metrics, adopt_optimizers, are_built
from tfdist.keras.variables_of_others import refuse_variables_of_others
from tfdist.keras.workers import communicator_of, replica_with_copies


@repairs(data_adapters, "is_tf_dataset", since="3.8", until="3.8")
def take_datasets_from_functions(original, x):
    """The result of `distribute_datasets_from_function` is not recognized as a dataset."""
    return original(x) or isinstance(x, tf.distribute.DistributedDataset)


@repairs(
    TensorFlowTrainer,
    "_maybe_symbolic_build",
    issue="keras-team/keras#20585, tensorflow/tensorflow#72388",
)
def build_from_local_batch(original, self, iterator=None, data_batch=None):
    """`fit` on several workers fails before its first step.

    To learn the shapes of a batch, Keras reduces the whole nested batch over all workers, which
    `tf.distribute.Strategy.reduce` does not take, and which would average strings and labels. The
    specs of a dataset tell the shapes without a batch. Reading one would open the dataset a second
    time: a `shuffle` then has another order than without a strategy, and a Python generator has
    lost a batch.
    """
    if self._distribute_strategy is not None and iterator is not None:
        data_batch = _shapes_of_replica(self, iterator)
        iterator = None
    if self._distribute_strategy is None:
        refuse_variables_of_others(self)
        return original(self, iterator=iterator, data_batch=data_batch)
    adopt_optimizers(self)
    has_optimizer = self.optimizer is None or self.optimizer.built
    try:
        result = original(self, iterator=iterator, data_batch=data_batch)
    except Exception as error:
        if not has_optimizer and self.optimizer.built:
            refuse_variables_of_others(self)
            raise  # within its `build`, which marks it as built before it is
        if any(map(is_deferred, self.variables)):
            raise  # while they got their values, of which the workers have others
        # The first step makes metrics and the rest. It has more than shapes: the replica, and
        # ragged or sparse tensors. It also reports errors in the data. A step of one's own
        # may not call the model at all, as a GAN's.
        if are_built(self, include_self=not _has_own_step(self)):
            _build_optimizer(self)
            refuse_variables_of_others(self)
            adopt_metrics(self)
            return None
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        raise kind(
            f"{error}\n{type(self).__name__} must have its variables before its first step on "
            "several replicas: call its layers once within strategy.scope(), or set self.built = "
            "True where it has them all"
        ) from error
    refuse_variables_of_others(self)
    adopt_metrics(self)
    return result


def _build_optimizer(model):
    """Makes the variables of an optimizer, which a backup assigns before the first step."""
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def _has_own_step(model):
    """Whether a step is not Keras's, so that the model need not be called with a batch."""
    kind = type(model)
    return (
        kind.train_step is not TensorFlowTrainer.train_step
        or kind.test_step is not TensorFlowTrainer.test_step
    )


def _shapes_of_replica(model, epoch_iterator):
    """Specs with the shapes and dtypes of a replica's batch, or such a batch."""
    strategy = model._distribute_strategy
    # Not `element_spec`, which fails where each of several workers has one device.
    data = epoch_iterator._distributed_dataset
    # A plain dataset has whole batches, in elastic training.
    of_data = data.element_spec if isinstance(data, tf.data.Dataset) else data._element_spec
    specs = tree.map_structure(_spec_of_replica, of_data)
    # A Python generator cannot be read again.
    yields_once = hasattr(epoch_iterator.data_adapter, "_output_signature")
    shapes = [spec.shape for spec in tree.flatten(specs) if spec is not None]
    ranks_known = all(shape.rank is not None for shape in shapes)
    # Layers may need sizes that only a batch has.
    is_built = are_built(model, include_self=True)
    if yields_once or (
        ranks_known and (is_built or all(None not in shape[1:].as_list() for shape in shapes))
    ):
        return specs
    # Without a strategy Keras opens the data once less.
    with draws.unchanged(getattr(epoch_iterator.data_adapter, "_dataset", None)):
        # One or two numbers precede the iterator, depending on the release of Keras.
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


@repairs(NoneTensorSpec, "_create_empty_value", adds=True)
def split_what_is_none(original, self):
    """A finite dataset of `(x, y, None)` fails under a strategy, and one of `(x, None)`.

    At the end of the data TensorFlow makes a batch of no rows of each tensor's shape.
    """
    return None


@repairs(PerReplicaSpec, "_to_tensor_list")
def hold_none_in_an_optional(original, self, value):
    """A dataset of `(x, y, None)` fails with several devices and `steps_per_execution` above 1.

    With Keras 3.16 it always does. `None` has no tensor in an `Optional` of a batch.
    """
    return [tensor for tensor in original(self, value) if tensor is not None]


@repairs(Trainer, "get_metrics_result", issue="keras-team/keras#19891")
def log_metrics_of_all_replicas(original, self):
    """After a batch `fit` shows the mean of the replicas' metrics.

    That is wrong where they saw different numbers of rows, and for all metrics that are not means.
    Here the replicas of one process add their metrics' state, as at the end of an epoch. Replicas
    of several workers do not: it would be one more collective per step.
    """
    replica = replica_with_copies()
    if replica is None or communicator_of(self) is not None:
        return original(self)
    return replica.merge_call(lambda strategy: original(self))


@repairs(TFEpochIterator, "_get_iterator")
def open_arrays_once_an_epoch(original, self):
    """`fit` opens its data a second time at the end of each epoch, and drops what it has opened.

    That costs as much as the beginning of an epoch. Arrays are opened once; the order of a
    `tf.data.Dataset` depends on how often it was opened, which `Keras3Positions.opened` counts.
    """
    is_at_end = self.steps_per_epoch is None and 0 < (self._num_batches or 0) <= self._steps_seen
    if is_at_end and isinstance(self.data_adapter, ArrayDataAdapter):
        return ()
    return original(self)


@repairs(GeneratorDataAdapter, "get_tf_dataset")
@repairs(PyDatasetAdapter, "get_tf_dataset")
def copy_what_python_yields(original, self):
    """`fit` writes into the caller's arrays that a generator or a `PyDataset` yields slices of.

    A tensor made of an array with aligned memory shares that memory. Where replicas split a batch
    TensorFlow takes the tensor for a temporary, whose memory a result may reuse.
    """
    return original(self).map(_copy_numbers)


def _copy_numbers(*batch):
    # Keras gives `None` as an `Optional` without a value, which TensorFlow cannot split.
    batch = tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )

    def copy(leaf):
        is_number = isinstance(leaf, tf.Tensor) and (
            leaf.dtype.is_floating or leaf.dtype.is_integer
        )
        return tf.raw_ops.DeepCopy(x=leaf) if is_number else leaf

    return tf.nest.map_structure(copy, batch, expand_composites=True)
