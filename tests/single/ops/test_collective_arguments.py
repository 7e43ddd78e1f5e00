"""Collectives of one rank, and arguments that are refused before any communication."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.errors import NotInitializedError
from tfdist.job import process


@pytest.fixture
def alone():
    with ops.Communicator(0, 1) as communicator:
        yield communicator


def test_a_world_of_one_rank(alone):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])

    def everything(x):
        return [
            ops.all_reduce(x, alone),
            ops.all_reduce(x, alone, "mean"),
            ops.all_reduce(x, alone, "product"),
            ops.reduce(x, alone),
            ops.broadcast(x, alone),
            ops.all_gather(x, alone),
            ops.gather(x, alone),
            ops.scatter(x, alone),
            ops.reduce_scatter(x, alone),
            ops.all_to_all(x, alone),
            ops.all_to_all(x, alone, splits=[2])[0],
        ]

    for function in (everything, tf.function(everything)):
        for result in function(x):
            np.testing.assert_array_equal(result, x)
    ops.barrier(alone)
    assert ops.join(alone) == 0
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(tf.add_n(tf.function(everything)(x)[:2] + everything(x)[3:]))
    np.testing.assert_array_equal(tape.gradient(value, x), np.full([2, 2], 10.0))
    words = tf.constant([["a"], [""]])
    np.testing.assert_array_equal(ops.all_gather(words, alone), words)
    assert ops.broadcast(tf.constant("b"), alone).numpy() == b"b"


def test_without_a_job(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    process.current.leave()
    with pytest.raises(NotInitializedError, match=r"all_gather: .*call tfdist.init\(\)"):
        ops.all_gather([1.0])
    with pytest.raises(NotInitializedError, match="tfdist.new_group"):
        tfdist.new_group([0])
    try:
        tfdist.init()
        assert float(ops.all_reduce(tf.constant(3.0), reduce_op="mean")) == 3.0
        group = tfdist.new_group([0])
        assert float(ops.all_reduce(tf.constant(3.0), group)) == 3.0
        with pytest.raises(ValueError, match="expected ranks from 0 to 0, received 1"):
            tfdist.new_group([1])
        variable = tf.Variable("word")
        tfdist.broadcast_variables([variable])
        assert variable.numpy() == b"word"
    finally:
        process.current.leave()


def test_what_is_refused(alone):
    x = tf.constant([1.0, 2.0])
    with pytest.raises(TypeError, match="expected a tfdist.ops.Communicator or None"):
        ops.broadcast(x, 0)
    for call in (ops.all_reduce, ops.reduce_scatter):
        with pytest.raises(ValueError, match="one of sum, mean, min, max, product, received 'avg'"):
            call(x, alone, "avg")
        with pytest.raises(TypeError, match="expected float16, .*, received string"):
            call(tf.constant(["a"]), alone)
        with pytest.raises(TypeError, match="received complex64"):
            call(tf.constant([1j], tf.complex64), alone)
    fused = lambda x, *ranks, **factor: ops.fused_all_reduce([x], *ranks, **factor)  # noqa: E731
    for call in (ops.all_reduce, ops.reduce_scatter, fused):
        for name in ("prescale_factor", "postscale_factor"):
            for factor in ("2", None, True, 1j):
                with pytest.raises(TypeError, match=f"{name} to be a number, received"):
                    call(x, alone, **{name: factor})
            for factor in (float("nan"), -float("inf")):
                with pytest.raises(ValueError, match=f"{name} to be finite, received"):
                    call(x, alone, **{name: factor})
            with pytest.raises(TypeError, match="expected numbers to multiply by 0.5, .* bool"):
                call(tf.constant([True]), alone, **{name: 0.5})
    with pytest.raises(TypeError, match="expected numbers for a mean, received bool"):
        ops.reduce(tf.constant(True), alone, reduce_op="mean")
    invalid = (tf.errors.InvalidArgumentError, ValueError)
    scalar = tf.constant(1.0)
    for call in (ops.all_gather, ops.gather, ops.scatter, ops.reduce_scatter, ops.all_to_all):
        with pytest.raises(invalid, match=f"'{call.__name__}': .* received a scalar as tensor 0"):
            call(scalar, alone)
        with pytest.raises(invalid, match="rank at least 1|at least rank 1"):
            tf.function(call).get_concrete_function(scalar, alone)
    for call in (ops.broadcast, ops.gather, ops.scatter, ops.reduce):
        with pytest.raises(invalid, match="expected a root from 0 to 0, received -1"):
            call(x, alone, -1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a numeric or bool tensor"):
        ops.gather(tf.constant(["a"]), alone)


def test_splits_that_do_not_fit(alone):
    x = tf.constant([1.0, 2.0])
    for splits in ([1], [3], [-2]):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"'mine': .*add up to the 2 rows of tensor 0, received \[{splits[0]}\]",
        ):
            ops.all_to_all(x, alone, splits, label="mine")
    with pytest.raises(ValueError, match=r"splits of shape \(1,\).*received shape \(2,\)"):
        ops.all_to_all(x, alone, [1, 1])
    with pytest.raises(ValueError, match="splits for each of 2 tensors"):
        ops.all_to_all([x, x], alone, [[2]])


def test_ranks_are_looked_up_at_each_execution():
    """A graph uses the job that this process belongs to when it runs."""
    numbers = tf.function(
        lambda: (
            tfdist.rank_op(),
            tfdist.size_op(),
            tfdist.local_rank_op(),
            tfdist.local_size_op(),
        )
    )
    three = ("a:1", "b:1", "b:2")
    try:
        traced = None
        for cluster, expected in (
            (Cluster.local(), [0, 1, 0, 1]),
            (Cluster(workers=three, task_index=2), [2, 3, 1, 2]),
            (Cluster(workers=three[1:], task_index=0), [0, 2, 0, 2]),
        ):
            process.current.enter(cluster)
            traced = traced or numbers.get_concrete_function()
            assert [int(number) for number in traced()] == expected
        assert all(o.dtype == tf.int32 and o.shape == () for o in traced.outputs)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            assert session.run(tfdist.size_op()) == 2
        process.current.leave()
        with pytest.raises(tf.errors.OpError, match="this process belongs to no job yet"):
            traced()
    finally:
        process.current.leave()
    with pytest.raises(TypeError, match="tfdist.rank_op: expected a tfdist.ops.Communicator"):
        tfdist.rank_op(0)


def test_objects_of_one_rank(alone):
    thing = {"a": [1, 2]}
    assert tfdist.broadcast_object(thing, communicator=alone) is thing
    (copy,) = tfdist.all_gather_object(thing, communicator=alone)
    assert copy == thing and copy is not thing
    with tf.Graph().as_default():
        assert tfdist.all_gather_object(None, communicator=alone) == [None]
    with pytest.raises(ValueError, match="'it': rank 0 of 1 cannot pickle .*lambda"):
        tfdist.broadcast_object(lambda: 0, communicator=alone, label="it")
    with pytest.raises(ValueError, match="expected a root_rank from 0 to 0, received 1"):
        tfdist.broadcast_object(thing, 1, communicator=alone)
    with pytest.raises(RuntimeError, match="outside of tf.function"):
        tf.function(lambda: tfdist.all_gather_object(1, communicator=alone))()


def test_packed_strings_that_are_damaged():
    pack, unpack = (
        ops.library.graph_ops().tfdist_pack_strings,
        ops.library.graph_ops().tfdist_unpack_strings,
    )
    words = tf.constant([["one", ""], ["three", "\0"]])
    packed = pack(input=words)
    again = unpack(packed=tf.concat([packed, packed], 0), concatenate=True, label="x")
    np.testing.assert_array_equal(again, tf.concat([words, words], 0))
    size = int(tf.size(packed))
    for cut in (0, 5, 8, 20, 30, 50, size - 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected packed strings"):
            unpack(packed=packed[:cut], concatenate=True, label="x")
    for at in range(0, 56, 8):
        broken = tf.tensor_scatter_nd_update(packed, [[at + 7]], [tf.constant(0x7F, tf.uint8)])
        with pytest.raises(tf.errors.InvalidArgumentError):
            unpack(packed=broken, concatenate=True, label="x")
