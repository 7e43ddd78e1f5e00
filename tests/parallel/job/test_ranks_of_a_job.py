"""Ranks and sizes of a job, and variables that are equal on all ranks."""

from __future__ import annotations

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops
from tfdist.errors import NotInitializedError


@on_ranks(1, 3)
def test_a_job_without_a_strategy(ctx):
    for asked in (tfdist.rank, tfdist.size, lambda: ops.all_reduce(tf.constant(1.0))):
        with pytest.raises(NotInitializedError, match=r"call tfdist.init\(\)"):
            asked()
    tfdist.init()
    assert (tfdist.rank(), tfdist.size()) == (ctx.rank, ctx.size)
    assert (tfdist.local_rank(), tfdist.local_size()) == (ctx.rank, ctx.size)
    total = sum(range(1, ctx.size + 1))
    assert float(ops.all_reduce(tf.constant(1.0 + ctx.rank))) == total

    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    optimizer = keras.optimizers.Adam(0.1 * (1 + ctx.rank))
    optimizer.build(layer.variables)
    plain = [tf.Variable(10 + ctx.rank), tf.Variable([ctx.rank == 0, True])]
    for variable in layer.variables:
        variable.assign(np.full(variable.shape, 1.0 + ctx.rank))
    tfdist.broadcast_variables([*layer.variables, *optimizer.variables, *plain], ctx.size - 1)
    for variable in layer.variables:
        np.testing.assert_array_equal(variable, np.full(variable.shape, ctx.size))
    np.testing.assert_allclose(optimizer.learning_rate, 0.1 * ctx.size, rtol=1e-6)
    assert plain[0].numpy() == 9 + ctx.size
    np.testing.assert_array_equal(plain[1], [ctx.size == 1, True])
    tfdist.broadcast_variables([])
    with pytest.raises(TypeError, match="received ndarray at position 1"):
        tfdist.broadcast_variables([plain[0], np.zeros(3)])

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.Variable(5.0 + ctx.rank)
        equal = tfdist.broadcast_variables([variable])
        session.run(variable.initializer)
        session.run(equal)
        assert session.run(variable) == 5.0


@on_ranks(2)
def test_a_strategy_names_the_job(ctx):
    tfdist.MultiWorkerMirroredStrategy()
    assert (tfdist.rank(), tfdist.size()) == (ctx.rank, 2)
    assert float(ops.all_reduce(tf.constant(1.0 + ctx.rank), reduce_op="mean")) == 1.5


@on_ranks(1)
def test_who_shares_a_host(ctx):
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"] = {"chief": ["a:1"], "worker": ["b:1", "a:2", "[::1]:1", "b:2"]}
    for task, place in {
        ("chief", 0): (0, 0, 2),
        ("worker", 0): (1, 0, 2),
        ("worker", 1): (2, 1, 2),
        ("worker", 2): (3, 0, 1),
        ("worker", 3): (4, 1, 2),
    }.items():
        config["task"] = dict(zip(("type", "index"), task, strict=True))
        os.environ["TF_CONFIG"] = json.dumps(config)
        tfdist.init()
        assert (tfdist.rank(), tfdist.local_rank(), tfdist.local_size()) == place
        assert tfdist.size() == 5
    config["cluster"]["evaluator"] = ["c:1"]
    config["task"] = {"type": "evaluator", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps(config)
    tfdist.init()
    assert tfdist.size() == 5
    with pytest.raises(NotInitializedError, match="evaluator 0 does not train"):
        tfdist.rank()
    with pytest.raises(NotInitializedError, match="evaluator 0 .*takes part in no collective"):
        ops.all_reduce(tf.constant(1.0))
