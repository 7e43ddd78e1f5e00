"""`tfdist.DistributedOptimizer` with Keras 3: N ranks equal one process with their batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.horovod import rank_shares
from parallel.horovod.rank_shares import own_rows
from support.processes.ranks import on_ranks, start_ranks
from support.training import models
from support.training.models import ADAPTIVE, EXACT, identical

STEPS = 6
OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), EXACT),
    "clipped": (
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, global_clipnorm=0.3),
        EXACT,
    ),
    "scheduled": (
        lambda: keras.optimizers.AdamW(
            keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5), use_ema=True
        ),
        ADAPTIVE,
    ),
}


@on_ranks(2, check=identical)
def test_fit_equals_one_process(ctx):
    tfdist.init()
    results = []
    for make, tolerance in OPTIMIZERS.values():
        model = rank_shares.train_like_one_process(
            ctx,
            lambda wrap, make=make: models.built_classifier(wrap(make()), steps_per_execution=2),
            STEPS,
            tolerance,
        )
        assert isinstance(model.optimizer, type(make()))
        assert int(model.optimizer.iterations) == 2 * STEPS
        results += [*model.get_weights(), *models.slots(model)]
    return results


def _weighted_rows():
    """A table, and a weight without a gradient; each step uses a few rows, some twice."""
    table = keras.Variable(np.arange(12.0).reshape(6, 2), dtype="float32", name="table")
    idle = keras.Variable(1.0, name="idle")
    return table, idle


@on_ranks(2, check=identical)
def test_rows_of_embeddings(ctx):
    """Rows travel alone; common rows of several ranks are added up; None stays None."""
    tfdist.init()
    table, idle = _weighted_rows()
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.Adagrad(0.5, 0.1))
    optimizer.build([table, idle])

    @tf.function
    def step(ids, scale):
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_sum(tf.gather(table.value, ids))
        (gradient,) = tape.gradient(loss, [table.value])
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply([gradient, None], [table, idle])

    with pytest.warns(UserWarning, match="idle"):  # Keras's, of a gradient that is None
        step(tf.constant([[1, 1, 4], [4, 5, 5]][ctx.rank]), tf.constant(1.0 + ctx.rank))
    # Row 1: twice 1 on rank 0; row 4: 1 and 2; row 5: twice 2 on rank 1. All halved.
    mean = np.array([0, 1, 0, 0, 1.5, 2])[:, np.newaxis]
    expected = np.arange(12.0).reshape(6, 2) - 0.5 * mean / np.sqrt(0.1 + mean**2)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    return [table.numpy()]


@pytest.mark.parametrize("eager", [False, True], ids=["function", "eager"])
@on_ranks(2, check=identical)
def test_backward_passes_per_step(ctx, eager):
    """Three passes make a step: nothing is sent in the first two; the sum or mean is applied."""
    tfdist.init()
    tf.config.run_functions_eagerly(eager)
    passes, features, labels = 3, *models.examples(4 * 3 * 16)
    results = []
    for average in (False, True):
        keras.utils.set_random_seed(0)
        model = models.built_classifier(
            tfdist.DistributedOptimizer(
                keras.optimizers.SGD(0.1, momentum=0.5, clipnorm=0.5),
                backward_passes_per_step=passes,
                average_aggregated_gradients=average,
            )
        )
        alone = models.built_classifier(keras.optimizers.SGD(0.1, momentum=0.5, clipnorm=0.5))
        alone.set_weights(model.get_weights())
        # One pass's rows of both ranks are one batch of 16; three passes' are a step's.
        own = [own_rows(array, ctx.rank, 2, 8) for array in (features, labels)]
        for number in range(12):
            before = rank_shares.bytes_sent()
            model.train_on_batch(*(array[8 * number : 8 * (number + 1)] for array in own))
            is_step = number % passes == passes - 1
            assert (rank_shares.bytes_sent() > before) == is_step
            assert int(model.optimizer.iterations) == (number + 1) // passes
            if is_step:
                _apply_at_once(
                    alone,
                    features,
                    labels,
                    slice(16 * (number - 2), 16 * (number + 1)),
                    1 if average else passes,
                )
                assert models.difference(model.get_weights(), alone.get_weights()) <= EXACT
        assert models.difference(models.slots(model), models.slots(alone)) <= EXACT
        results += model.get_weights()
    return results


def _apply_at_once(model, features, labels, rows, factor):
    with tf.GradientTape() as tape:
        loss = factor * model.loss(labels[rows], model(features[rows], training=True))
    variables = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)


@on_ranks(2, check=identical)
def test_backward_passes_with_rows(ctx):
    """Rows of several passes travel together, and untouched rows do not."""
    tfdist.init()
    table, idle = _weighted_rows()
    optimizer = tfdist.DistributedOptimizer(
        keras.optimizers.SGD(1.0), gradient_reduction="sum", backward_passes_per_step=2
    )

    @tf.function
    def one_pass(ids, scale):
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_sum(tf.gather(table.value, ids)) + idle.value
        optimizer.apply(tape.gradient(loss, [table.value, idle.value]), [table, idle])

    expected, sent = np.arange(12.0).reshape(6, 2), []
    for number in range(4):
        before = rank_shares.bytes_sent()
        for rank in range(2):
            ids, scale = [number, number + rank], 1.0 + rank + 10.0 * number
            np.subtract.at(expected, ids, scale)
            if rank == ctx.rank:
                one_pass(tf.constant(ids), tf.constant(scale))
        sent.append(rank_shares.bytes_sent() - before)
        if number % 2:
            np.testing.assert_array_equal(table.numpy(), expected)
    assert sent[0] == sent[2] == 0 < sent[1]
    assert idle.numpy() == 1.0 - 2 * 4
    # At most 3 rows of 2 floats and their numbers, and one float; the table has 48 bytes.
    assert sent[1] < 48 + 30
    return [table.numpy()]


@on_ranks(2, check=identical)
def test_mixed_precision(ctx):
    """All ranks leave out the pass in which a gradient of one overflows."""
    tfdist.init()
    keras.mixed_precision.set_global_policy("mixed_float16")
    features, labels = models.examples(64, "float16")
    own = [own_rows(array, ctx.rank, 2) for array in (features, labels)]
    huge = own[0] * (np.float16(6e4) if ctx.rank == 1 else np.float16(1))
    results = []
    for passes in (1, 2):
        keras.utils.set_random_seed(1)
        model = models.built_classifier(
            tfdist.DistributedOptimizer(keras.optimizers.SGD(0.05), backward_passes_per_step=passes)
        )
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        with pytest.raises(ValueError, match="DistributedSGD is one already"):
            tfdist.DistributedOptimizer(model.optimizer)
        model.optimizer.build(model.trainable_variables)
        before, scale = model.get_weights(), float(model.optimizer.dynamic_scale)
        model.train_on_batch(huge, own[1])
        models.identical([model.get_weights(), before])
        assert float(model.optimizer.dynamic_scale) == scale / 2
        loss = float(model.loss(own[1], model(own[0])))
        for _ in range(8):
            model.train_on_batch(*own)
        assert float(model.loss(own[1], model(own[0]))) < loss
        assert int(model.optimizer.inner_optimizer.iterations) == 8 // passes
        results += model.get_weights()
    return results


@on_ranks(2, check=identical)
def test_compression(ctx):
    """Half the bytes, or fewer; every rank the same; the method is saved with the model."""
    tfdist.init()
    random = np.random.default_rng(3)
    features = random.normal(size=(32 * 8, 64)).astype("float32")
    labels = features @ random.normal(size=64).astype("float32") / 8
    own = [own_rows(array, ctx.rank, 2) for array in (features, labels)]
    results, sent, losses = [], [], []
    for method in (None, tfdist.Compression.fp16, tfdist.compression.TopK(0.1, min_elements=512)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        )
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=method)
        model.compile(optimizer, "mse")
        before = rank_shares.bytes_sent()
        options = {"batch_size": 16, "epochs": 5, "shuffle": False, "verbose": 0}
        history = model.fit(*own, **options).history
        sent.append(rank_shares.bytes_sent() - before)
        losses.append(history["loss"][-1])
        assert losses[-1] < 0.5 * history["loss"][0]
        results += model.get_weights()
        config = optimizer.get_config()
        assert type(optimizer).from_config(config).get_config() == config
    assert 0.5 < sent[1] / sent[0] < 0.53 and sent[2] / sent[0] < 0.3
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert config["compression"]["method"] == "TopK" and config["compression"]["ratio"] == 0.1
    with pytest.raises(ValueError, match="expected 'none', 'fp16', .* received 'zip'"):
        tfdist.DistributedOptimizer(keras.optimizers.SGD(), compression="zip")
    return results


@on_ranks(2, check=identical)
def test_training_goes_on_after_loading(ctx):
    """A loaded model's optimizer is distributed, with its state; a plain one becomes so."""
    tfdist.init()
    features, labels = models.examples(64 * 8)
    own = [own_rows(array, ctx.rank, 2) for array in (features, labels)]
    keras.utils.set_random_seed(2)
    optimizer = keras.optimizers.Adam(
        keras.optimizers.schedules.PolynomialDecay(0.01, 20), name="mine"
    )
    model = models.built_classifier(tfdist.DistributedOptimizer(optimizer, "sum", 2, name="our"))
    model.fit(*own, shuffle=False, verbose=0)
    path = ctx.tmp_path / f"{ctx.rank}.keras"
    model.save(path)
    loaded = tfdist.load_model(path)
    plain = ctx.tmp_path / f"plain{ctx.rank}.keras"
    assert loaded.optimizer.name == "our" and isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    models.identical([models.slots(loaded), models.slots(model)])
    for each in (model, loaded):
        each.fit(*own, shuffle=False, verbose=0)
    models.identical([loaded.get_weights(), model.get_weights()])
    # A checkpoint of the plain optimizer, which has the same variables.
    rate = keras.optimizers.schedules.PolynomialDecay(0.01, 20)
    plain_optimizer = keras.optimizers.Adam(rate, name="our")
    plain_optimizer.build(model.trainable_variables)
    saved = tf.train.Checkpoint(optimizer=plain_optimizer).save(ctx.tmp_path / f"{ctx.rank}")
    restored = tf.train.Checkpoint(optimizer=loaded.optimizer).restore(str(saved))
    restored.assert_existing_objects_matched()
    models.identical([models.slots(loaded), [v.numpy() for v in plain_optimizer.variables]])

    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clone.compile("adam", "mse")
    clone.save(plain)
    assert type(tfdist.load_model(plain).optimizer).__name__ == "DistributedAdam"
    return [*loaded.get_weights(), *models.slots(loaded)]


def _train_until_killed(ctx):
    tfdist.init()
    model = models.built_classifier(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    features, labels = models.examples(16)
    for step in range(1000):
        model.train_on_batch(features, labels)
        ctx.report("step", step)


def test_a_killed_rank_is_named(tmp_path):
    with start_ranks(_train_until_killed, 3, tmp_path=tmp_path) as ranks:
        ranks.wait_for(1, "step", 3)
        ranks[1].kill()
        outcomes = ranks.join(timeout=30)
    for rank in (0, 2):
        assert outcomes[rank].exception == "UnavailableError"
        assert "rank 1" in outcomes[rank].message
