"""Layers of each rank's own, whose gradients are not reduced, in closed forms."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.horovod import rank_shares
from support.processes.ranks import on_ranks
from tfdist.callbacks import BroadcastGlobalVariablesCallback


def own_layer(library, rank: int):
    """A layer of another shape on each rank, so that nothing of it can be sent by mistake."""
    layer = library.layers.Dense(2, use_bias=False, kernel_initializer="zeros", name="own")
    layer.build((None, 1 + rank))
    return layer


def steps_of_optimizers(ctx, library, optimizers) -> None:
    """Of slope r + 1 on rank r each takes its own half, or the whole."""
    for make in optimizers:
        for scale, slope in ((True, (ctx.rank + 1) / 2), (False, ctx.rank + 1.0)):
            layer, other = own_layer(library, ctx.rank), tf.Variable([0.0] * (ctx.rank + 1))
            shared, idle = tf.Variable([0.0, 0.0]), tf.Variable(0.0)
            variables = [shared, layer.trainable_weights[0], other, idle]
            optimizer = tfdist.PartialDistributedOptimizer(
                make(), local_layers=layer, scale_local_gradients=scale
            )
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            inner.register_local_var(other)
            inner.register_local_var(idle)  # without a gradient
            ones = [tf.ones_like(v) * (ctx.rank + 1.0) for v in variables[:3]]
            before = rank_shares.bytes_sent()
            optimizer.apply_gradients(zip(ones, variables[:3], strict=True))
            # The shared one alone, and with a loss scale whether it overflowed.
            assert rank_shares.bytes_sent() - before <= (8 if inner is optimizer else 16)
            np.testing.assert_allclose(shared, [-1.5, -1.5])
            np.testing.assert_allclose(variables[1], -slope * np.ones([ctx.rank + 1, 2]))
            np.testing.assert_allclose(other, [-slope] * (ctx.rank + 1))


def weights_that_are_not_broadcast(ctx, library, optimizers) -> None:
    """The callback leaves local variables alone, and what the optimizer has for them."""
    for make in optimizers:
        layers = library.layers
        first = layers.Dense(2 + ctx.rank, name="own")
        model = library.Sequential([library.Input((3,)), first, layers.Dense(1, name="shared")])
        shared = [*model.layers[-1].weights[1:]]  # its kernel has another shape on each rank too
        local = [*first.weights, model.layers[-1].weights[0]]
        model.compile(tfdist.PartialDistributedOptimizer(make(), local_layers=first), "mse")
        for variable in local[2:]:
            model.optimizer.register_local_var(variable)
        for variable in model.weights:
            variable.assign(np.full(variable.shape, 10.0 + ctx.rank))
        build = getattr(model.optimizer, "build", None)
        if build is not None:
            build(model.trainable_variables)
        else:
            model.optimizer._create_all_weights(model.trainable_variables)
        callback = BroadcastGlobalVariablesCallback(1, local_variables=local)
        variables = model.optimizer.variables
        slots = list(variables() if callable(variables) else variables)
        for variable in slots:
            if variable.dtype in ("float32", tf.float32) and tuple(variable.shape):
                variable.assign(np.full(variable.shape, 10.0 + ctx.rank))
        callback.set_model(model)
        callback.on_train_begin()
        assert {float(x) for v in local for x in v.numpy().ravel()} == {10.0 + ctx.rank}
        assert {float(x) for v in shared for x in v.numpy().ravel()} == {11.0}
        found = {}
        for slot in slots:
            if tuple(slot.shape):
                found.setdefault(tuple(slot.shape), set()).update(slot.numpy().ravel().tolist())
        expected = {tuple(v.shape): {10.0 + ctx.rank} for v in local}
        assert found == expected | {tuple(v.shape): {11.0} for v in shared}
    with pytest.raises(TypeError, match="expected variables as local_variables, received 'own'"):
        BroadcastGlobalVariablesCallback(0, ["own"])


@on_ranks(2)
def test_keras_3(ctx):
    tfdist.init()
    optimizers = [
        lambda: keras.optimizers.SGD(1.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0),
    ]
    steps_of_optimizers(ctx, keras, optimizers)
    weights_that_are_not_broadcast(
        ctx, keras, [lambda: keras.optimizers.SGD(1.0, momentum=0.9), keras.optimizers.Adam]
    )
    tapes(ctx)
    passes_and_rows(ctx)
    saved_and_loaded(ctx)
    for partial in (tfdist.PartialDistributedOptimizer, tfdist.PartialDistributedGradientTape):
        made = keras.optimizers.SGD() if partial.__name__.endswith("Optimizer") else None
        made = made or tf.GradientTape()
        with pytest.raises(TypeError, match=f"{partial.__name__}: expected layers as .* 'own'"):
            partial(made, local_layers=["own"])
        with pytest.raises(TypeError, match="scale_local_gradients to be True or False, .* 2"):
            partial(made, scale_local_gradients=2)
    with pytest.raises(TypeError, match="expected a variable for a local one, received 'own'"):
        tfdist.DistributedOptimizer(keras.optimizers.SGD()).register_local_var("own")


@on_ranks(2, env={"TF_USE_LEGACY_KERAS": "1"})
def test_tf_keras(ctx):
    import tf_keras

    tfdist.init()
    optimizers = tf_keras.optimizers
    both = [lambda: optimizers.SGD(1.0), lambda: optimizers.legacy.SGD(1.0)]
    steps_of_optimizers(ctx, tf_keras, both)
    weights_that_are_not_broadcast(ctx, tf_keras, [optimizers.Adam, optimizers.legacy.Adam])


def tapes(ctx) -> None:
    layer = own_layer(keras, ctx.rank)
    (kernel,) = layer.trainable_weights
    shared, mine, idle = tf.Variable([1.0]), tf.Variable([2.0] * (1 + ctx.rank)), tf.Variable(0.0)
    for scale, share in ((True, 2.0), (False, 1.0)):

        @tf.function
        def gradients(scale=scale):
            with tf.GradientTape() as tape:
                total = sum(tf.reduce_sum(tf.convert_to_tensor(v)) for v in (shared, mine, kernel))
                loss = (1.0 + ctx.rank) * total
            tape = tfdist.PartialDistributedGradientTape(
                tape, local_layers=[layer], scale_local_gradients=scale
            )
            tape.register_local_var(mine)
            tape.register_local_source(idle)
            return tape.gradient(loss, {"a": shared, "b": [mine, kernel, idle]})

        found = gradients()
        np.testing.assert_allclose(found["a"], [1.5])
        one, two, none = found["b"]
        np.testing.assert_allclose(one, np.full([1 + ctx.rank], (1 + ctx.rank) / share))
        np.testing.assert_allclose(two, np.full([1 + ctx.rank, 2], (1 + ctx.rank) / share))
        assert none is None


def passes_and_rows(ctx) -> None:
    """Two passes make a step; a table of another length on each rank, and rows of it."""
    table = keras.Variable(np.zeros([4 + ctx.rank, 2]), dtype="float32", name="table")
    shared = keras.Variable([0.0], name="shared")
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.register_local_var(table)

    @tf.function
    def one_pass(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table.value, ids)) + (1.0 + ctx.rank) * shared.value
        gradients = tape.gradient(loss, [table.value, shared.value])
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply(gradients, [table, shared])

    for ids in ([1, 3], [3, 3 + ctx.rank]):
        one_pass(tf.constant(ids))
    counts = np.bincount([1, 3, 3, 3 + ctx.rank], minlength=4 + ctx.rank)
    np.testing.assert_allclose(table.numpy(), -counts[:, None] / 2 * [1, 1])
    np.testing.assert_allclose(shared.numpy(), [-3.0])


def saved_and_loaded(ctx) -> None:
    """A loaded optimizer trains when its local variables are known again."""
    x = np.ones([4, 3], "float32")
    own = keras.layers.Dense(2, name="own")
    model = keras.Sequential([keras.Input((3,)), own, keras.layers.Dense(1)])
    optimizer = tfdist.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=own)
    model.compile(optimizer, "mse")
    options = {"verbose": 0, "callbacks": [BroadcastGlobalVariablesCallback(0)]}
    model.fit(x, x[:, :1] * ctx.rank, **options)
    kernels = tfdist.all_gather_object([v.numpy() for v in model.weights])
    alike = [np.array_equal(*pair) for pair in zip(*kernels, strict=True)]
    assert alike == [False, False, True, True]
    path = ctx.tmp_path / f"{ctx.rank}.keras"
    model.save(path)
    loaded = tfdist.load_model(path)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    with pytest.raises(ValueError, match="for the 2 variables .*own/kernel, .*own/bias; .* 0"):
        loaded.fit(x, x[:, :1], verbose=0)
    for weight in loaded.get_layer("own").weights:
        loaded.optimizer.register_local_var(weight)
    for each in (model, loaded):
        each.fit(x, x[:, :1], verbose=0)
    for one, two in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
