"""A continued training reads the rows that it would have read, whatever its shuffles drew.

The reference is one process that nothing happened to. A training that continues has datasets of its
own, as a new process has.
"""

from __future__ import annotations

import contextlib
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import BackupAndRestore

import tfdist
from support.processes.ranks import on_ranks
from support.training.resuming import Follow, Interrupted
from tfdist.keras.drawing import drawn, go_to

ROWS, BATCH, EPOCHS = 40, 4, 3


class Noting(keras.Sequential):
    """Notes the rows of each step."""

    def __init__(self):
        super().__init__([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        self.noted = []

    def _note(self, kind, x):
        tf.numpy_function(
            lambda rows: self.noted.append((kind, *np.ravel(rows).astype(int).tolist())), [x], []
        )

    def train_step(self, data):
        self._note("train", data[0])
        return super().train_step(data)

    def test_step(self, data):
        self._note("test", data[0])
        return super().test_step(data)


def _model(**options):
    model = Noting()
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse", **options)
    return model


def _rows(first=0, rows=ROWS):
    numbers = tf.data.Dataset.range(first, first + rows, output_type=tf.float32)
    return numbers.map(lambda x: (x[None], x[None] / 10.0))


def _branches(rows=None, **options):
    rows = _rows().shuffle(ROWS, seed=5) if rows is None else rows
    return {
        "x": rows.take(24).batch(BATCH),
        "validation_data": rows.skip(24).batch(BATCH),
        **options,
    }


def _own_shuffle():
    return {
        "x": _rows().shuffle(ROWS, seed=5).batch(BATCH),
        "validation_data": _rows(100).shuffle(ROWS, seed=6).batch(BATCH),
        "validation_steps": 3,
    }


class _Batches(keras.utils.PyDataset):
    """Shuffles its rows at the end of each epoch, and so before each reading."""

    def __init__(self):
        super().__init__()
        self._random = np.random.default_rng(3)
        self._rows = np.arange(100.0, 130.0)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        rows = self._rows[3 * index : 3 * index + 3, None]
        return rows, rows / 10.0

    def on_epoch_end(self):
        self._random.shuffle(self._rows)


def _split():
    train, test = keras.utils.split_dataset(_rows(), left_size=24, shuffle=True, seed=3)
    return {
        "x": train.shuffle(24, seed=4).batch(BATCH),
        "validation_data": test.shuffle(16, seed=4).batch(BATCH),
        "validation_steps": 2,
    }


def _interleaved():
    rows = tf.data.Dataset.range(4).shuffle(4, seed=7)
    return _branches(
        rows.interleave(lambda i: _numbered(i).shuffle(10, seed=2), cycle_length=2).shuffle(
            9, seed=3
        )
    )


def _numbered(i):
    numbers = tf.cast(i * 10 + tf.range(10, dtype=tf.int64), tf.float32)[:, None]
    return tf.data.Dataset.from_tensor_slices((numbers, numbers))


def _sampled():
    both = tf.data.Dataset.sample_from_datasets(
        [_rows(), _rows(100)], seed=3, rerandomize_each_iteration=True
    )
    return {"x": both.batch(BATCH), "validation_data": both.take(7).batch(BATCH)}


INPUTS = {
    "branches": _branches,
    "branches_read_partly": lambda: _branches(validation_steps=2),
    "branches_of_shuffles_of_shuffles": lambda: _branches(
        _rows().shuffle(ROWS, seed=5).shuffle(9, seed=6)
    ),
    "branches_of_unknown_size": lambda: _branches(
        _rows().filter(lambda x, y: True).shuffle(ROWS, seed=5)
    ),
    "same_data": lambda: {
        name: data
        for data in [_rows().shuffle(ROWS, seed=5).batch(BATCH)]
        for name in ("x", "validation_data")
    },
    "interleaved": _interleaved,
    "sampled": _sampled,
    "a_shuffle_of_its_own": _own_shuffle,
    "split_dataset": _split,
    "validation_with_a_py_dataset": lambda: {
        "x": _rows().shuffle(ROWS, seed=5).batch(BATCH),
        "validation_data": _Batches(),
        "validation_steps": 3,
    },
    "endless": lambda: {
        **_own_shuffle(),
        "x": _rows().shuffle(ROWS, seed=5).repeat().batch(BATCH),
        "steps_per_epoch": 7,
    },
    "repeated_in_each_epoch": lambda: {
        "x": _rows(rows=18).shuffle(18, seed=5).repeat(2).batch(BATCH),
        "validation_data": _rows(100).shuffle(ROWS, seed=6).batch(BATCH),
        "validation_steps": 3,
    },
    "cached_before_shuffle": lambda: _branches(_rows().cache().shuffle(ROWS, seed=5)),
}


def _fit(model, data, *callbacks):
    model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=list(callbacks))


def _messages():
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    return messages


def _assert_goes_on(make, data, path, at, before=None, save_freq=2):
    """Asserts that a training which is interrupted reads on as an uninterrupted one.

    Args:
      make: makes the model.
      data: makes the arguments of `fit`.
      path: of the backup.
      at: the last step before the interruption: epoch and batch.
      before: the script's actions before `fit`, with the model and the arguments. The training that
        continues leaves it out.
    """

    def run(leaves_out, *callbacks):
        keras.utils.set_random_seed(0)
        model, own = make(), data()
        if before is not None and not leaves_out:
            before(model, own)
        model.noted.clear()
        return model, own, lambda: _fit(model, own, *callbacks)

    whole = Follow()
    expected, _, fit = run(False, whole)
    fit()

    def backup():
        return BackupAndRestore(str(path), save_freq=save_freq)

    _, _, fit = run(False, backup(), Follow(at))
    with pytest.raises(Interrupted):
        fit()
    after = Follow()
    received, _, fit = run(True, backup(), after)
    fit()
    rest = whole.steps[whole.steps.index(after.steps[0]) :]
    assert after.steps == rest and after.steps[0] > (0, 2)
    assert received.noted == expected.noted[-len(received.noted) :]
    # Nothing is missing: the left-out data came before.
    trained = [kind for kind, *_ in received.noted].count("train")
    assert trained == len(rest)
    np.testing.assert_allclose(received.get_weights()[0], expected.get_weights()[0], rtol=1e-6)


# Within an epoch those orders that several datasets draw from.
@pytest.mark.long(
    "*sampled-between*",
    "*interleaved-within*",
    "*split_dataset-between*",
    "*a_shuffle_of_its_own-between*",
    "*endless-between*",
    "*validation_with_a_py_dataset-between*",
    covered_by="the other cases",
)
@pytest.mark.long(
    "*-within_an_epoch",
    usual=("*-branches-*", "*-interleaved-*", "*-split_dataset-*"),
    covered_by="the other cases",
)
@pytest.mark.parametrize("at", [(1, 4), (2, 0)], ids=["within_an_epoch", "between_epochs"])
@pytest.mark.parametrize("kind", INPUTS)
@on_ranks(1)
def test_inputs(ctx, tmp_path, kind, at):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    messages = _messages()

    def make():
        with strategy.scope():
            return _model()

    every = 3 if at[1] else "epoch"
    _assert_goes_on(make, INPUTS[kind], tmp_path / "backup", at, save_freq=every)
    assert not messages


def _earlier_work(model, data):
    _fit(model, data)
    model.evaluate(data["validation_data"], verbose=0, steps=1)
    model.predict(data["x"].map(lambda x, y: x), verbose=0, steps=3)


@pytest.mark.long("*endless", "*branches", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["branches", "a_shuffle_of_its_own", "endless"])
@on_ranks(1)
def test_earlier_work_is_left_out(ctx, tmp_path, kind):
    """A script that is started again skips what came before the `fit` of its backup."""
    strategy = tfdist.MultiWorkerMirroredStrategy()

    def make():
        with strategy.scope():
            return _model()

    _assert_goes_on(make, INPUTS[kind], tmp_path / "backup", (1, 4), _earlier_work)


def _of_arrays():
    x = np.arange(ROWS, dtype="float32")[:, None]
    return {"x": x, "y": x, "batch_size": BATCH}


def _of_py_datasets():
    return {"x": _Batches(), "validation_data": _Batches(), "validation_steps": 3}


LEFT_OUT = {
    "arrays": _of_arrays,
    "py_datasets": _of_py_datasets,
    "branches": _branches,
    "endless": INPUTS["endless"],
    "cached": lambda: _branches(_rows().cache().shuffle(ROWS, seed=5)),
}


@pytest.mark.long("*py_datasets", "*branches", "*endless", covered_by="the other cases")
@pytest.mark.parametrize("kind", LEFT_OUT)
@on_ranks(1)
def test_a_call_is_left_out(ctx, kind):
    """The next `fit` reads what it would have read after `fit`, `evaluate` and `predict`."""
    keras.utils.set_random_seed(0)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = _model()
    data = LEFT_OUT[kind]()
    given = [data["x"], data.get("validation_data")]
    _fit(model, data)
    if given[1] is not None:
        model.evaluate(given[1], verbose=0, steps=1)
        model.predict(given[1], verbose=0, steps=1)
    counts = drawn(given)
    model.noted.clear()
    _fit(model, data)
    expected = list(model.noted)

    data = LEFT_OUT[kind]()
    assert go_to([data["x"], data.get("validation_data")], counts) == []
    model.noted.clear()
    _fit(model, data)
    assert model.noted == expected


@on_ranks(1)
def test_a_call_that_cannot_be_left_out(ctx):
    tfdist.MultiWorkerMirroredStrategy()
    batches = (np.ones((BATCH, 1)) for _ in range(3))
    (reason,) = go_to([batches, None], drawn([batches, None]))
    assert reason == "a Python generator, which was read there, cannot be read on here"
    (reason,) = go_to([_branches()["x"], None], [])
    assert reason == "its data has 1 parts that draw orders, and had 0"
    data = _Batches()
    data.tfdist_calls = {"on_epoch_end": 3}
    (reason,) = go_to([data], [2])
    assert reason == "on_epoch_end of its _Batches was called 3 times, and had been 2"


NAMED = {
    "cached": (lambda: _rows().shuffle(ROWS, seed=5).cache(), "cache comes after shuffle"),
    "repeated_beside_a_validation": (
        lambda: _rows().shuffle(ROWS, seed=5),
        "draw orders of one shuffle in turns",
    ),
}


@pytest.mark.parametrize("kind", NAMED)
@on_ranks(1)
def test_what_cannot_be_positioned_is_named(ctx, tmp_path, kind):
    rows, reason = NAMED[kind]
    strategy = tfdist.MultiWorkerMirroredStrategy()
    messages = _messages()
    for callback in (Follow((2, 3)), Follow()):
        data = _branches(rows())
        if "turns" in reason:
            data["x"], data["steps_per_epoch"] = data["x"].repeat(), 6
        with strategy.scope():
            model = _model()
        backup = BackupAndRestore(str(tmp_path / "backup"), save_freq=3)
        with pytest.raises(Interrupted) if callback._at else contextlib.nullcontext():
            _fit(model, data, backup, callback)
    (message,) = messages
    assert "its data cannot be positioned exactly" in message and reason in message
