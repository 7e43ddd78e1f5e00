"""Batch normalization with the statistics of all ranks.

Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift", 2015. A rank with few examples has poor statistics; the statistics of all ranks
together equal the statistics of the whole batch.

Every rank r sends its number of examples n_r, and for each channel the mean m_r and the sum q_r of
squared distances from the mean, in one message. With n = sum n_r,

    m = sum n_r m_r / n,    variance = sum (q_r + n_r (m_r - m)^2) / n

Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances", 1979. Unlike the mean of the squares minus the square of the mean, this loses no digits
if the mean is large.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import ops
from tfdist.horovod.reduction import refuse_strategy
from tfdist.job import process
from tfdist.ops.collectives.world import world


@keras.saving.register_keras_serializable("tfdist")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Normalizes over the batches of all ranks together, in training.

    Otherwise as `keras.layers.BatchNormalization`, with its arguments. N ranks with batches of B
    normalize as one process with a batch of N * B; batches may differ in size. Costs one collective
    forward and one backward. Statistics are float32 where the layer computes in float16 or
    bfloat16. For Keras 3. Under a strategy use `keras.layers.BatchNormalization` with
    `synchronized=True`.

    Raises:
      ValueError: when called under a strategy.
      tfdist.errors.NotInitializedError: when called before `tfdist.init()`.

    Example:
      >>> _ = tfdist.init()
      >>> layer = tfdist.SyncBatchNormalization(epsilon=0.0)
      >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy()
      array([[-1.],
             [ 1.]], dtype=float32)
    """

    def _moments(self, inputs, mask):
        api_name = "tfdist.SyncBatchNormalization"
        refuse_strategy(api_name)
        if process.is_alone(api_name):
            return super()._moments(inputs, mask)
        own = tf.stack(_statistics(tf.convert_to_tensor(inputs), self._reduction_axes, mask))
        return _combined(_of_all_ranks(own, self.name))


def _statistics(inputs: tf.Tensor, axes: list[int], mask: tf.Tensor | None) -> list[tf.Tensor]:
    """Count, mean and sum of squared distances of this rank's examples, each [channels]."""
    if mask is None:
        sums = tf.reduce_sum(inputs, axes)
        count = tf.cast(tf.size(inputs) // tf.maximum(tf.size(sums), 1), inputs.dtype)
        counts = tf.fill(tf.shape(sums), count)
    else:
        counted = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
        inputs = tf.where(counted, inputs, 0)
        sums = tf.reduce_sum(inputs, axes)
        counts = tf.reduce_sum(tf.cast(counted, inputs.dtype), axes)
    means = tf.math.divide_no_nan(sums, counts)
    channels = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
    distances = inputs - tf.reshape(means, channels)
    if mask is not None:
        distances = tf.where(counted, distances, 0)
    return [counts, means, tf.reduce_sum(tf.square(distances), axes)]


def _combined(all_ranks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all examples, each [channels].

    Args:
      all_ranks: [ranks, 3, channels]: each rank's count, mean and sum of squared distances.
    """
    counts, means, squares = tf.unstack(all_ranks, axis=1)
    total = tf.reduce_sum(counts, 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
    around = tf.reduce_sum(squares + counts * tf.square(means - mean), 0)
    return mean, tf.math.divide_no_nan(around, total)


def _of_all_ranks(own: tf.Tensor, label: str) -> tf.Tensor:
    """Every rank's tensor, stacked: [ranks, *own.shape].

    The gradient of a rank's tensor is the sum of the gradients that all ranks have for it. Ranks
    that have run out of data contribute nothing, so a rank finds its row by the rank number that
    was gathered with it.
    """

    @tf.custom_gradient
    def gather(own):
        own_rank, _ = world(process.communicator("tfdist.SyncBatchNormalization"))
        rank_column = tf.fill([1, 1, *own.shape[1:]], tf.cast(own_rank, own.dtype))
        with_rank = tf.concat([own[tf.newaxis], rank_column], 1)
        all_ranks = ops.all_gather(with_rank, label=f"statistics of {label}")
        all_ranks = tf.ensure_shape(all_ranks, [None, *with_rank.shape[1:]])

        def gradient(upstream):
            total = ops.all_reduce(upstream, label=f"gradient of the statistics of {label}")
            position = tf.where(all_ranks[:, -1, 0] == tf.cast(own_rank, own.dtype))[0, 0]
            return total[position]

        return all_ranks[:, :-1], gradient

    return gather(own)
