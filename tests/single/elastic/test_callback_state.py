"""A newcomer's callbacks take the states of a member's."""

from __future__ import annotations

import collections
import logging
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras import callback_state
from tfdist.keras.callback_state import CallbackStates


class Own(keras.callbacks.Callback):
    """A callback with given attributes."""

    def __init__(self, **values):
        super().__init__()
        vars(self).update(values)


def states(*callbacks):
    return CallbackStates(callbacks, (keras.callbacks.ProgbarLogger,), 0)


def carry(member, newcomer):
    """Gives a newcomer's callback the present state of a member's, which has begun before."""
    states(newcomer).restore(states(member).describe())


VALUES = {
    "number": (3, 0),
    "float": (float("inf"), 0.0),
    "of numpy": (np.float32(0.1), np.float32(0.0)),
    "nothing": (None, 1),
    "flag": (True, False),
    "made later": (None, [np.eye(2)]),
    "tuple": ((1, 2.5, None), (0,)),
    "nested": ({"a": [1, {2: (np.arange(3), "text")}]}, {}),
    "weights": ([np.eye(2), np.ones(3)], []),
    "queue": (collections.deque([1, 2], maxlen=2), collections.deque(maxlen=2)),
    "longer queue": (collections.deque([1, 2, 3], maxlen=5), None),
    "sums": (collections.defaultdict(list, a=[1]), collections.defaultdict(list, b=[2])),
    "counts": (collections.Counter("aab"), collections.Counter("c")),
    "set": ({1, 2}, {3}),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    theirs, before = VALUES[name]
    newcomer = Own(value=before)
    member = Own(value=before)
    member_states = states(member)
    member.value = theirs
    states(newcomer).restore(member_states.describe())
    np.testing.assert_equal(newcomer.value, theirs)
    assert type(newcomer.value) is type(theirs)
    assert getattr(newcomer.value, "maxlen", None) == getattr(theirs, "maxlen", None)


@pytest.mark.parametrize("made", [list, dict, set, collections.deque, lambda _: np.zeros(2)])
def test_what_the_script_holds_too_is_changed_in_place(made):
    held = made([])
    newcomer = Own(value=held)
    theirs = np.ones(2) if isinstance(held, np.ndarray) else made([(1, 2)])
    carry(Own(value=theirs), newcomer)
    assert newcomer.value is held
    np.testing.assert_equal(held, theirs)


def test_generators_and_variables():
    def callback(seed):
        return Own(
            numpy=np.random.default_rng(seed),
            former=np.random.RandomState(seed),
            python=random.Random(seed),
            keras=keras.random.SeedGenerator(seed),
            tf=tf.random.Generator.from_seed(seed),
            variable=tf.Variable([1.0 + seed]),
            of_keras=keras.Variable([2.0 + seed]),
        )

    def drawn(own):
        return [
            own.numpy.normal(),
            own.former.normal(),
            own.python.random(),
            keras.random.normal([1], seed=own.keras).numpy(),
            own.tf.normal([1]).numpy(),
            own.variable.numpy(),
            own.of_keras.numpy(),
        ]

    member, newcomer = callback(1), callback(2)
    drawn(member)
    variable = newcomer.variable
    carry(member, newcomer)
    np.testing.assert_equal(drawn(newcomer), drawn(member))
    assert newcomer.variable is variable


def test_texts_that_do_not_change_stay_each_worker_s_own():
    member = Own(path="/of/member", phase="first", paths=["/of/member"], seen=["a"])
    newcomer = Own(path="/of/newcomer", phase="first", paths=["/of/newcomer"], seen=["a"])
    member_states = states(member)
    member.phase = "second"
    member.seen.append("b")
    states(newcomer).restore(member_states.describe())
    assert (newcomer.path, newcomer.paths) == ("/of/newcomer", ["/of/newcomer"])
    assert (newcomer.phase, newcomer.seen) == ("second", ["a", "b"])


def test_other_objects_stay_each_worker_s_own():
    itself = []
    itself.append(itself)
    model, function, file = keras.Sequential(), lambda: None, object()
    newcomer = Own(itself=1, model_of_user=model, function=function, file=file, number=1)
    member = Own(itself=itself, model_of_user=0j, function=lambda: 1, file=object(), number=2)
    newcomer.set_params({"verbose": 2})
    member.set_params({"verbose": 0})
    carry(member, newcomer)
    assert newcomer.model_of_user is model and newcomer.function is function
    assert newcomer.file is file and newcomer.itself == 1 and newcomer.number == 2
    assert newcomer.params == {"verbose": 2}


class Stateful(Own):
    def get_state(self):
        return {"sum": self.hidden.total}

    def set_state(self, state):
        self.hidden.total = state["sum"]


class Hidden:
    def __init__(self, total):
        self.total = total


def test_a_callback_says_how_it_is_carried():
    newcomer = Stateful(hidden=Hidden(1), number=1)
    carry(Stateful(hidden=Hidden(5), number=5), newcomer)
    assert (newcomer.hidden.total, newcomer.number) == (5, 1)


def test_a_state_that_cannot_be_carried(caplog):
    newcomer = Stateful(hidden=Hidden(1))
    with caplog.at_level(logging.WARNING, "tfdist.elastic"):
        carry(Stateful(hidden=Hidden(object())), newcomer)
    assert newcomer.hidden.total == 1
    assert "Stateful.get_state(): expected get_state() to return numbers" in caplog.text


def test_data_is_not_sent(caplog, monkeypatch):
    monkeypatch.setattr(callback_state, "_MAX_BYTES", 1 << 20)
    newcomer, data = Own(data=np.zeros(1)), np.zeros((1 << 17) + 1)
    with caplog.at_level(logging.WARNING, "tfdist.elastic"):
        carry(Own(data=data), newcomer)
    assert newcomer.data.size == 1
    assert "Own.data: expected at most 1 MB, received 1 MB" in caplog.text
    best = Own(data=None)
    of_model = CallbackStates([Own(data=data)], (), data.nbytes)
    states(best).restore(of_model.describe())
    assert best.data.size == data.size


def test_comparisons_of_keras():
    """EarlyStopping chooses one after an epoch, and then flips the sign of min_delta."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def stop():
        callback = keras.callbacks.EarlyStopping("loss", min_delta=0.5, patience=9)
        callback.set_model(model)
        callback.on_train_begin()
        return callback

    member, newcomer = stop(), stop()
    member.on_epoch_end(0, {"loss": 3.0})
    carry(member, newcomer)
    for callback in (member, newcomer):
        callback.on_epoch_end(1, {"loss": 2.8})
    assert (newcomer.wait, newcomer.best, newcomer.min_delta) == (1, 3.0, -0.5)
    assert (member.wait, member.best, member.min_delta) == (1, 3.0, -0.5)


def test_other_callbacks_begin_as_new_ones(caplog):
    newcomer = Own(number=1)
    member = states(Own(number=2), keras.callbacks.History())
    with caplog.at_level(logging.WARNING, "tfdist.elastic"):
        states(newcomer).restore(member.describe())
        assert newcomer.number == 1 and "expected the members' callbacks" in caplog.text
    progress = states(newcomer, keras.callbacks.History(), keras.callbacks.ProgbarLogger())
    progress.restore(member.describe())
    assert newcomer.number == 2
