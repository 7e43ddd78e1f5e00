"""Types for annotations: objects of either Keras, tensors, and structures of them.

The types of Keras and TensorFlow are texts at run time: a program may have imported one Keras, or
neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
    import tf_keras

KerasModel: TypeAlias = "keras.Model | tf_keras.Model"
KerasLayer: TypeAlias = "keras.Layer | tf_keras.layers.Layer"
KerasLoss: TypeAlias = "keras.Loss | tf_keras.losses.Loss"
KerasMetric: TypeAlias = "keras.metrics.Metric | tf_keras.metrics.Metric"
KerasCallback: TypeAlias = "keras.callbacks.Callback | tf_keras.callbacks.Callback"
# Also of an optimizer that wraps another one, and of the legacy ones of tf_keras.
KerasOptimizer: TypeAlias = "keras.Optimizer | tf_keras.optimizers.Optimizer"
KerasInitializer: TypeAlias = "keras.Initializer | tf_keras.initializers.Initializer"
# tf_keras has variables of TensorFlow.
KerasVariable: TypeAlias = "keras.Variable | tf.Variable"
# By name, the results of metrics: of a step on each replica, or of an epoch.
Logs: TypeAlias = "dict[str, tf.Tensor | float]"
# A gradient: dense, or of the rows of a table.
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"
# A tensor, or what `tf.convert_to_tensor` takes; and one of them or several.
TensorLike: TypeAlias = "tf.types.experimental.TensorLike"
TensorsLike: TypeAlias = "TensorLike | Sequence[TensorLike]"
# Dense, with ragged rows, or sparse.
AnyTensor: TypeAlias = "tf.Tensor | tf.RaggedTensor | tf.SparseTensor"
# The data of a strategy; a whole dataset where each process reads it by itself.
DistributedData: TypeAlias = "tf.data.Dataset | tf.distribute.DistributedDataset"
# Values of a kind, or lists, tuples and dicts of them, as `tf.nest` takes them. A type checker
# cannot follow `tf.nest`, which returns the structure that it was given.
Nested: TypeAlias = Any
# Takes the batch of a replica; returns logs, or rows of a result.
StepFunction: TypeAlias = Callable[[Nested], Nested]
FilePath: TypeAlias = "str | os.PathLike[str]"
