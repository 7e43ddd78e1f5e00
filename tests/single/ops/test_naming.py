"""The names of collectives without a label."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf

from tfdist.ops.collectives.naming import name_of, named


def name_in_graph(name: str, more: int = 0) -> str:
    with tf.Graph().as_default():
        tensors = [tf.constant(1.0, name=name)] + [tf.constant(2.0)] * more
        return name_of(tensors)


@pytest.mark.parametrize(
    ("tensor", "more", "expected"),
    [
        ("dense/kernel", 0, "dense/kernel"),
        ("dense/kernel", 2, "dense/kernel (and 2 more)"),
        ("gradient_tape/seq_1/dense_1/Add/Reshape", 5, "gradients in seq_1/dense_1 (and 5 more)"),
        ("gradient_tape/seq/norm/div_no_nan_1/mul", 0, "gradient in seq/norm"),
        ("gradient_tape/MatMul", 0, "gradient in MatMul"),
        ("AddN_2", 0, "a sum of gradients"),
    ],
)
def test_names_of_tensors(tensor, more, expected):
    assert name_in_graph(tensor, more) == expected


def test_an_eager_tensor_has_no_name():
    assert name_of([tf.constant(1.0)]) == "a tensor"


def test_a_name_around_the_call():
    with named("the outer one"):
        with named("the inner one"):
            assert name_of([tf.constant(1.0)]) == "the inner one"
        assert name_of([tf.constant(1.0)]) == "the outer one"
        # In a graph it is another name, which all threads see that add to the graph.
        assert name_in_graph("x") == "x"
    with tf.Graph().as_default() as graph, named("of the graph"):
        found = []

        def of_a_replica():
            with graph.as_default():
                found.append(name_of([tf.constant(1.0)]))

        thread = threading.Thread(target=of_a_replica)
        thread.start()
        thread.join()
        assert found == ["of the graph"]
    assert name_of([tf.constant(1.0)]) == "a tensor"
