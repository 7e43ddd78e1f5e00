"""`tfdist.DistributedOptimizer` and the callbacks with tf_keras."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.horovod import rank_shares
from parallel.horovod.rank_shares import own_rows
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import ADAPTIVE, EXACT, identical

STEPS = 6
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}


@on_ranks(2, check=identical, env=LEGACY)
def test_fit_equals_one_process(ctx):
    import tf_keras

    tfdist.init()
    optimizers = tf_keras.optimizers
    results = []
    for make, tolerance, eager in (
        (lambda: optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.3), EXACT, True),
        (lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.01, 20)), ADAPTIVE, False),
        (lambda: optimizers.legacy.SGD(0.05, momentum=0.9), EXACT, True),
    ):

        def build(wrap, make=make, eager=eager):
            # To trace tf_keras is slow: the reference runs eagerly.
            eager = eager or wrap is not tfdist.DistributedOptimizer
            return models.built_classifier(wrap(make()), library=tf_keras, run_eagerly=eager)

        model = rank_shares.train_like_one_process(ctx, build, STEPS, tolerance, tf_keras)
        assert isinstance(model.optimizer, type(make()))
        with pytest.raises(ValueError, match="is one already"):
            tfdist.DistributedOptimizer(model.optimizer)
        results += [*model.get_weights(), *models.slots(model)]
    return results


@on_ranks(2, check=identical, env=LEGACY)
def test_passes_loading_and_overflow(ctx):
    import tf_keras

    tfdist.init()
    features, labels = models.examples(4 * 32)
    own = [own_rows(array, ctx.rank, 2, 16) for array in (features, labels)]
    options = {"library": tf_keras, "run_eagerly": True}
    results = []
    for family in (tf_keras.optimizers, tf_keras.optimizers.legacy):
        tf_keras.utils.set_random_seed(0)
        optimizer = tfdist.DistributedOptimizer(
            family.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        model = models.built_classifier(optimizer, **options)
        alone = models.built_classifier(family.SGD(0.1), **options)
        alone.set_weights(model.get_weights())
        sent = []
        for number in range(4):
            before = rank_shares.bytes_sent()
            model.train_on_batch(*(array[16 * number : 16 * (number + 1)] for array in own))
            sent.append(rank_shares.bytes_sent() - before)
        stats = tfdist.callbacks.PsStats(str(ctx.tmp_path))  # of Keras 3, and does nothing here
        alone.fit(features, labels, batch_size=64, shuffle=False, verbose=0, callbacks=[stats])
        assert models.difference(model.get_weights(), alone.get_weights()) <= EXACT
        assert sent[0] == sent[2] == 0 < sent[1] == sent[3]
        assert int(model.optimizer.iterations) == 2
        path = ctx.tmp_path / f"{family.__name__}{ctx.rank}.keras"
        model.save(path)
        loaded = tf_keras.models.load_model(path)
        assert loaded.optimizer.get_config() == model.optimizer.get_config()
        assert type(loaded.optimizer).__name__ == "DistributedSGD"
        results += loaded.get_weights()

    scaled = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match="expected backward_passes_per_step=1 with"):
        tfdist.DistributedOptimizer(scaled, backward_passes_per_step=2)
    assert tfdist.DistributedOptimizer(scaled) is scaled
    variable = tf.Variable(1.0)
    for gradient in (np.inf if ctx.rank == 1 else 1.0, 1.0 + ctx.rank):
        with tf.GradientTape() as tape:
            loss = scaled.get_scaled_loss(gradient * variable)
        unscaled = scaled.get_unscaled_gradients(tape.gradient(loss, [variable]))
        scaled.apply_gradients([(unscaled[0], variable)])
    assert variable.numpy() == 1.0 - 1.5
    return [*results, variable.numpy()]
