"""Checkpoints move between strategies: mirrored, central and none, in every direction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras.callbacks import BackupAndRestore, ModelCheckpoint

from devices.replicas import make_strategy
from support.training import models
from support.training.models import EXACT, classifier, difference, slots

STEPS, BATCH = 4, 32
# Every change from one kind to another is a step of this path.
PATH = ("mirrored", "central", "none", "mirrored", "none", "central", "mirrored")
LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])


class Training:
    """A classifier and a metric of its own, under a strategy of two replicas or under none.

    Args:
      kind: "mirrored", "central" or "none".
      seed: of the initial weights, so that restored values differ from initial ones.
      library: `keras` or `tf_keras`.
      built: whether the variables are made at once, or by the first batch.
      middle: layers between the two dense ones.
      optimizer: makes the optimizer.
    """

    def __init__(self, kind, seed, *, library=keras, built=True, middle=(), optimizer=None):
        self.strategy = tf.distribute.get_strategy() if kind == "none" else make_strategy(kind, 2)
        library.utils.set_random_seed(seed)
        with self.strategy.scope():
            optimizer = optimizer or (lambda: library.optimizers.SGD(0.1, momentum=0.9))
            self.model = classifier(
                optimizer(), library=library, middle=[layer() for layer in middle]
            )
            self.metric = library.metrics.Mean()
            if built:
                self.model.build((None, models.COLUMNS))
                self.model.optimizer.build(self.model.trainable_variables)
        # TensorFlow cannot save a metric of Keras 3, but its variables.
        metric = [getattr(v, "_value", v) for v in self.metric.variables]
        self.checkpoint = tf.train.Checkpoint(model=self.model, metric=metric)

    def fit(self, first: int = 0, steps: int = STEPS) -> Any:
        """Trains on `steps` global batches, from the batch `first` on."""
        data = models.dataset(len(PATH) * STEPS * BATCH, BATCH).skip(first).take(steps)
        return self.model.fit(data, verbose=0)

    def state(self) -> list[np.ndarray]:
        """Returns weights, statistics, slots, the step count, and the metric's state."""
        metric = [v.numpy() for v in self.metric.variables]
        return [*self.model.get_weights(), *slots(self.model), *metric]

    def update_metric(self) -> float:
        """Gives the metric 1 on replica 0 and 2 on replica 1; returns their sum."""

        def update():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            self.metric.update_state(tf.cast(replica, tf.float32) + 1.0)

        self.strategy.run(update)
        return sum(1.0 + r for r in range(self.strategy.num_replicas_in_sync))


@pytest.mark.long("tf_keras", covered_by="the other cases")
@LIBRARIES
def test_all_state_survives_every_change_of_strategy(tmp_path, library):
    options = {
        "library": library,
        "middle": [library.layers.BatchNormalization],
        "optimizer": library.optimizers.Adam,
    }
    training = Training(PATH[0], 0, **options)
    training.fit()
    total, count = training.update_metric(), 2
    for hop, kind in enumerate(PATH[1:], start=1):
        before = training.state()
        path = training.checkpoint.save(tmp_path / f"hop-{hop}")
        training = Training(kind, hop, **options)
        assert difference(training.state(), before) > 1e-3
        training.checkpoint.restore(path).assert_consumed()
        assert difference(training.state(), before) == 0.0, f"{PATH[hop - 1]} to {kind}"
        # A restored sum counts once, not once per replica, also after later additions.
        total += training.update_metric()
        count += training.strategy.num_replicas_in_sync
        assert float(training.metric.result()) == np.float32(total) / np.float32(count)
    assert training.model.optimizer.iterations.numpy() == STEPS


def _by_checkpoint(before: Training, after: Training, directory: Path) -> None:
    path = before.checkpoint.save(directory / "checkpoint")
    with after.strategy.scope():
        after.checkpoint.restore(path)


def _by_model_file(before: Training, after: Training, directory: Path) -> None:
    before.model.save(directory / "model.keras")
    with after.strategy.scope():
        after.model = keras.models.load_model(directory / "model.keras")


@pytest.mark.long("tf_keras_unbuilt", covered_by="the other cases")
@pytest.mark.long("model_file", covered_by="the other cases")
@pytest.mark.parametrize(
    ("carry", "options", "path"),
    [
        (_by_checkpoint, {"library": keras}, PATH[:4]),
        # Restores the values when the first batch makes the variables; Keras 3 cannot do that.
        (_by_checkpoint, {"library": tf_keras, "built": False}, PATH[3:]),
        (_by_model_file, {"library": keras}, PATH[3:]),
    ],
    ids=["checkpoint", "tf_keras_unbuilt", "model_file"],
)
def test_training_goes_on_equally_under_another_strategy(tmp_path, carry, options, path):
    expected = Training("none", 0, **options)
    training = None
    for hop, kind in enumerate(path):
        previous, training = training, Training(kind, hop, **options)
        if previous is not None:
            carry(previous, training, tmp_path)
        for one in (expected, training):
            one.fit(first=hop * STEPS)
        assert difference(training.state(), expected.state()) <= EXACT, f"hop {hop}, to {kind}"


@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_variables_made_after_restoring_take_the_saved_values(tmp_path, kind):
    source = tf.Module()
    source.weight = tf.Variable([1.0, 2.0])
    source.table = tf.Variable(tf.range(6, dtype=tf.int64))
    path = tf.train.Checkpoint(module=source).save(tmp_path / "checkpoint")
    strategy = make_strategy(kind, 2)
    late = tf.Module()
    with strategy.scope():
        status = tf.train.Checkpoint(module=late).restore(path)
        late.weight = tf.Variable([0.0, 0.0], aggregation=tf.VariableAggregation.MEAN)
        late.table = tf.Variable(tf.zeros([6], tf.int64))
    status.assert_existing_objects_matched()
    for value in strategy.experimental_local_results(late.weight):
        np.testing.assert_array_equal(value, [1.0, 2.0])
    np.testing.assert_array_equal(late.table.numpy(), np.arange(6))


def test_saved_weights_load_under_every_strategy(tmp_path):
    options = {"middle": [keras.layers.BatchNormalization], "optimizer": keras.optimizers.Adam}
    file = tmp_path / "model.weights.h5"
    training = Training(PATH[0], 0, **options)
    training.fit()
    weights = training.model.get_weights()
    predicted = []
    for hop, kind in enumerate(PATH[1:], start=1):
        training.model.save_weights(file)
        training = Training(kind, hop, **options)
        training.model.load_weights(file)
        assert difference(training.model.get_weights(), weights) == 0.0, f"hop {hop}, to {kind}"
        predicted.append(training.model.predict(models.examples(50)[0], verbose=0))
    assert difference(predicted, [predicted[0]] * len(predicted)) <= EXACT


class Interrupted(Exception):
    """Ends a training in the test below."""


class _InterruptAfter(keras.callbacks.Callback):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._epoch:
            raise Interrupted


@pytest.mark.long("central", covered_by="the other cases")
def test_callbacks_check_point_and_resume_an_interrupted_training(tmp_path, kind):
    data = models.dataset(STEPS * BATCH, BATCH)
    reference = Training(kind, 0)
    reference.model.fit(data, epochs=4, verbose=0)

    def fit(training: Training, *others: keras.callbacks.Callback):
        backup = BackupAndRestore(tmp_path / "backup")
        saved = ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
        return training.model.fit(data, epochs=4, callbacks=[backup, saved, *others], verbose=0)

    with pytest.raises(Interrupted):
        fit(Training(kind, 0), _InterruptAfter(1))
    resumed = Training(kind, 1)
    # The interrupted epoch had been backed up at its end.
    assert len(fit(resumed).epoch) == 2
    assert difference(resumed.state(), reference.state()) <= EXACT
    assert sorted(p.name for p in tmp_path.glob("*.keras")) == [f"{i}.keras" for i in range(1, 5)]
    last = keras.models.load_model(tmp_path / "4.keras")
    assert difference(last.get_weights(), resumed.model.get_weights()) == 0.0
    assert difference(slots(last), slots(resumed.model)) == 0.0


def _flip_first_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 0xFF]) + content[1:])


def _cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


# TensorFlow's errors; for a truncated file they contain neither path nor name.
DAMAGE = {
    "flipped": (_flip_first_byte, tf.errors.DataLossError, r"{path} .*Checksum does not match"),
    "missing": (Path.unlink, tf.errors.OpError, r"{path}.data-00000-of-00001; No such file"),
    "cut": (_cut_in_half, IndexError, "Read less bytes than requested"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused(tmp_path, kind, damage):
    path = Training(kind, 0).checkpoint.save(tmp_path / "checkpoint")
    act, error, message = DAMAGE[damage]
    act(Path(f"{path}.data-00000-of-00001"))
    training = Training(kind, 1)
    with pytest.raises(error, match=message.format(path=re.escape(path))):
        training.checkpoint.restore(path)


def test_a_damaged_keras_file_is_refused(tmp_path, kind):
    training = Training(kind, 0)
    file = tmp_path / "model.keras"
    training.model.save(file)
    _cut_in_half(file)
    with training.strategy.scope(), pytest.raises(ValueError, match=re.escape(str(file))):
        keras.models.load_model(file)
