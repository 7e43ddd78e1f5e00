"""The states of `tfdist.elastic`: the values they keep, bring back and refuse, in one process."""

from __future__ import annotations

import collections
import io
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.config.cluster import Cluster
from tfdist.elastic.plain_values import decode, encode
from tfdist.job import process


@pytest.fixture(autouse=True)
def alone():
    process.current.enter(Cluster())
    yield
    process.current.leave()


PLAIN = {
    "nothing": None,
    "flag": True,
    "count": 2**70,
    "rate": 0.1,
    "infinite": float("-inf"),
    "text": "Grüße",
    "mixed": [1, (2.5, "x"), {"a": [], 3: {None: ()}}],
}


def test_values_come_back_with_their_types():
    received = decode(encode(PLAIN, "owner"))
    assert received == PLAIN
    assert list(received) == list(PLAIN)
    assert type(received["mixed"][1]) is tuple and type(received["flag"]) is bool
    assert next(iter(received["mixed"][2][3])) is None


def test_arrays_come_back_with_their_dtypes():
    values = {
        "table": np.arange(6, dtype=np.int16).reshape(2, 3),
        "inside": {"list": [np.array(["a", "bc"]), np.float32(0.1)]},
        "empty": np.zeros((0, 2)),
        "scalar": np.array(3),
    }
    received = decode(encode(values, "owner"))
    np.testing.assert_array_equal(received["table"], values["table"])
    assert received["table"].dtype == np.int16 and received["empty"].shape == (0, 2)
    texts, number = received["inside"]["list"]
    assert texts.tolist() == ["a", "bc"] and type(number) is np.float32
    assert number == np.float32(0.1) and received["scalar"].shape == ()


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "place", "what"),
    [
        ({1, 2}, "'best'", "received set"),
        (b"bytes", "'best'", "received bytes"),
        (Text("x"), "'best'", "received .*Text"),
        (collections.OrderedDict(a=1), "'best'", "received collections.OrderedDict"),
        ([0, {"a": object()}], r"\"best\[1\]\['a'\]\"", "received object"),
        ({(1, 2): 3}, "keys of 'best'", "received tuple"),
        (np.array([object()]), "'best'", "received one of object"),
        (np.zeros(2, [("a", "i4")]), "'best'", "received one of"),
        (tf.constant(1.0), "'best'", "received .*EagerTensor"),
    ],
    ids=["set", "bytes", "str", "dict", "inner", "key", "objects", "records", "tensor"],
)
def test_other_values_are_refused_by_name(value, place, what):
    with pytest.raises(TypeError, match=rf"tfdist.elastic.ObjectState: .*{place}.*{what}"):
        tfdist.elastic.ObjectState(epoch=0, best=value)
    state = tfdist.elastic.ObjectState(epoch=0, best=1)
    state.best = value
    with pytest.raises(TypeError, match=f"{place}.*{what}"):
        state.commit()


def test_pickles_are_not_read():
    buffer = io.BytesIO()
    np.savez(buffer, json=np.array([{"a": 1}], object))
    with pytest.raises(ValueError, match="allow_pickle"):
        decode(buffer.getvalue())
    with pytest.raises(ValueError):
        decode(pickle.dumps({"a": 1}))


@pytest.mark.parametrize("name", ["save", "_kept", "restore", "register_reset_callbacks"])
def test_names_of_attributes_are_refused(name):
    with pytest.raises(ValueError, match=f"no attributes of a state, received '{name}'"):
        tfdist.elastic.ObjectState(**{name: 1})


def test_values_are_copied():
    state = tfdist.elastic.ObjectState(epoch=0, history=[1.0])
    state.history.append(2.0)
    state.epoch = 1
    state.restore()
    assert (state.epoch, state.history) == (0, [1.0])
    state.history.append(3.0)
    state.commit()
    state.history.append(4.0)
    state.restore()
    assert state.history == [1.0, 3.0]


def test_variables_are_copied_whatever_writes_them():
    dense = tf.Variable([1.0, 2.0, 3.0])
    added = tf.Variable([1, 2], dtype=tf.int64)
    rows = tf.Variable([[1.0], [2.0]])
    flag = tf.Variable(True)
    state = tfdist.elastic.TensorFlowState([dense, added, rows, flag], step=0)

    @tf.function
    def write():
        tf.raw_ops.ResourceApplyGradientDescent(
            var=dense.handle, alpha=1.0, delta=tf.ones([3]), use_locking=False
        )
        added.assign_add([1, 1])
        rows.scatter_nd_update([[1]], [[9.0]])
        flag.assign(False)

    for _ in range(2):
        write()
        assert dense.numpy()[0] == 0.0 and rows.numpy()[1] == 9.0
        state.step += 1
        state.restore()
        assert dense.numpy().tolist() == [1, 2, 3] and added.numpy().tolist() == [1, 2]
        assert rows.numpy().tolist() == [[1], [2]] and flag.numpy() and state.step == 0
    write()
    state.save()
    write()
    state.restore()
    assert dense.numpy().tolist() == [0, 1, 2] and added.numpy().tolist() == [2, 3]


def test_other_things_than_variables_are_refused():
    with pytest.raises(TypeError, match="TensorFlowState: expected variables, received .* at pos"):
        tfdist.elastic.TensorFlowState([tf.Variable(1.0), tf.constant(1.0)])


def classifier():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])


def test_a_model_and_its_optimizer():
    model = classifier()
    optimizer = keras.optimizers.Adam(0.1)
    state = tfdist.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    before = [*model.get_weights(), *(v.numpy() for v in optimizer.variables)]
    assert len(before) == 2 + 2 + 2 * 2
    gradients = [tf.ones_like(variable) for variable in model.trainable_variables]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    state.batch = 1
    state.restore()
    after = [*model.get_weights(), *(v.numpy() for v in optimizer.variables)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert state.batch == 0


def test_the_optimizer_of_compile():
    model = classifier()
    model.compile("adam", "mse")
    state = tfdist.elastic.TensorFlowKerasState(model)
    assert state.optimizer is model.optimizer and model.optimizer.built


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match="which is not built"):
        tfdist.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(TypeError, match="expected a model of Keras, received 3"):
        tfdist.elastic.TensorFlowKerasState(3)


@pytest.mark.parametrize("kind", ["Adam", "legacy.Adam"])
def test_tf_keras(kind):
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
    cls = tf_keras.optimizers
    for name in kind.split("."):
        cls = getattr(cls, name)
    optimizer = cls(0.5)
    state = tfdist.elastic.TensorFlowKerasState(model, optimizer)
    before = model.get_weights()
    gradients = [tf.ones_like(variable) for variable in model.trainable_variables]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert model.get_weights()[1] != before[1] and int(optimizer.iterations) == 1
    state.restore()
    assert model.get_weights()[1] == before[1] and int(optimizer.iterations) == 0


def test_accumulated_gradients_are_forgotten():
    weight = keras.Variable([1.0, 1.0], name="weight")
    model = classifier()
    model.build((None, 2))
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([weight])
    state = tfdist.elastic.TensorFlowKerasState(model, optimizer)
    one = tf.constant([1.0, 1.0])
    optimizer.apply([one], [weight])
    state.restore()
    optimizer.apply([10 * one], [weight])
    np.testing.assert_array_equal(weight.numpy(), [1.0, 1.0])
    optimizer.apply([100 * one], [weight])
    np.testing.assert_array_equal(weight.numpy(), [-109.0, -109.0])


def test_run_alone():
    state = tfdist.elastic.ObjectState(step=0)

    @tfdist.elastic.run
    def train(state, steps, *, by):
        """Trains."""
        while state.step < steps:
            state.step += by
            state.commit()
        return state.step

    assert train(state, 4, by=2) == 4
    assert train.__name__ == "train" and train.__doc__ == "Trains."


def test_run_passes_exceptions_on():
    calls = []

    @tfdist.elastic.run
    def train(state):
        calls.append(1)
        raise tf.errors.UnavailableError(None, None, "of the program's own")

    with pytest.raises(tf.errors.UnavailableError, match="own"):
        train(tfdist.elastic.ObjectState())
    assert len(calls) == 1


def test_run_needs_a_state():
    @tfdist.elastic.run
    def train(state):
        pass

    with pytest.raises(TypeError, match="a state as first argument of .*train.*, received 3"):
        train(3)


@pytest.mark.long(
    covered_by="single/ops/test_library.py::test_import_is_light_and_every_public_name_resolves"
)
def test_importing_the_room_is_light_and_every_name_resolves():
    script = (
        "import sys, tfdist.elastic\n"
        "assert 'tensorflow' not in sys.modules\n"
        "assert dir(tfdist.elastic) == sorted(tfdist.elastic.__all__)\n"
        "for name in tfdist.elastic.__all__:\n"
        "    assert getattr(tfdist.elastic, name).__name__ == name\n"
        "try: tfdist.elastic.State\n"
        "except AttributeError as error: assert \"no attribute 'State'\" in str(error)\n"
        "else: raise AssertionError('expected AttributeError')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
