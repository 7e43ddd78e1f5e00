"""`tfdist.SyncBatchNormalization`: N ranks normalize as one process with all their rows."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfdist
from parallel.horovod import rank_shares
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import EXACT, identical


def _run(layer, inputs, upstream, mask=None):
    """The layer's outputs of `inputs`, and gradients of their sum times `upstream`."""

    @tf.function
    def step(inputs, upstream, mask):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True, mask=mask)
            loss = tf.reduce_sum(outputs * tf.cast(upstream, outputs.dtype))
        return outputs, tape.gradient(loss, [inputs, layer.gamma.value, layer.beta.value])

    outputs, (inputs_gradient, *others) = step(inputs, upstream, mask)
    return outputs, inputs_gradient, others


def _statistics(layer):
    return [layer.moving_mean.numpy(), layer.moving_variance.numpy()]


@on_ranks(3)
def test_equals_one_process(ctx):
    """Even and uneven batches, one of them empty; 2 and 4 dimensions; with a mask; a large mean."""
    tfdist.init()
    random = np.random.default_rng(0)
    for sizes, shape, axis, masked in (
        ((4, 4, 4), (3,), -1, False),
        ((7, 0, 2), (3,), -1, False),
        ((1, 3, 2), (4, 2, 3), -1, False),
        ((1, 3, 2), (3, 4, 2), 1, False),
        ((2, 3, 1), (5, 3), -1, True),
    ):
        inputs = (100.0 + random.normal(size=(sum(sizes), *shape))).astype("float32")
        upstream = random.normal(size=inputs.shape).astype("float32")
        mask = random.random(inputs.shape[:-1]) < 0.6 if masked else None
        own = slice(sum(sizes[: ctx.rank]), sum(sizes[: ctx.rank + 1]))

        def of_rows(layer, rows, inputs=inputs, upstream=upstream, mask=mask):
            return _run(
                layer,
                *(None if a is None else tf.constant(a[rows]) for a in (inputs, upstream, mask)),
            )

        one = keras.layers.BatchNormalization(axis, momentum=0.5)
        layer = tfdist.SyncBatchNormalization(axis, momentum=0.5)
        for each in (one, layer):
            each.build(inputs.shape)
            each.gamma.assign([1.0, 2.0, 3.0])
        whole = of_rows(one, slice(None))
        part = of_rows(layer, own)
        # A row's value after subtracting 100 is known to 1e-5 only.
        np.testing.assert_allclose(part[0], whole[0][own], atol=2e-4)
        np.testing.assert_allclose(part[1], whole[1][own], atol=2e-4)
        for mine, expected in zip(part[2], whole[2], strict=True):
            total = tfdist.ops.all_reduce(mine)
            np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(_statistics(layer), _statistics(one), rtol=1e-4)


@on_ranks(2, check=identical)
def test_fit_equals_one_process(ctx):
    tfdist.init()

    def build(wrap):
        distributed = wrap is tfdist.DistributedOptimizer
        layers = tfdist if distributed else keras.layers
        kind = layers.SyncBatchNormalization if distributed else layers.BatchNormalization
        return models.built_classifier(
            wrap(keras.optimizers.SGD(0.05, momentum=0.9)), middle=[kind(momentum=0.8)]
        )

    model = rank_shares.train_like_one_process(ctx, build, 6, 2 * EXACT)
    path = ctx.tmp_path / f"{ctx.rank}.keras"
    model.save(path)
    loaded = tfdist.load_model(path)
    assert isinstance(loaded.layers[1], tfdist.SyncBatchNormalization)
    # Its statistics are used without the other ranks.
    predicted = loaded.predict(models.examples(8)[0][: 4 * ctx.rank + 1], verbose=0)
    assert predicted.shape == (4 * ctx.rank + 1, models.CLASSES)
    return model.get_weights()


@on_ranks(2)
def test_half_precision(ctx):
    """Sums that float16 could not hold: a thousand values of about a thousand."""
    tfdist.init()
    values = np.full([1000, 1], 1000.0, "float16") + np.float16(8 * ctx.rank - 4)
    layer = tfdist.SyncBatchNormalization(momentum=0.0, epsilon=0.0, dtype="mixed_float16")
    outputs = layer(tf.constant(values), training=True)
    assert outputs.dtype == tf.float16
    np.testing.assert_array_equal(outputs, np.full([1000, 1], 2.0 * ctx.rank - 1))
    np.testing.assert_array_equal(_statistics(layer), [[1000.0], [16.0]])
