"""A training that was interrupted continues after the last backup's batch."""

from __future__ import annotations

import logging

import keras
import pytest
import tensorflow as tf
from keras.callbacks import BackupAndRestore, ModelCheckpoint

import tfdist
from support.processes.ranks import on_ranks
from support.training import resuming
from support.training.models import ADAPTIVE, EXACT, built_classifier, examples, identical
from support.training.resuming import Follow, Interrupted

# The step after the last backup before the interruption; backups follow every third step.
_NEXT = {"endless_dataset": (1, 4), "dataset_longer_than_an_epoch": (1, 2)}


def _classifier(strategy, optimizer="sgd", **options):
    made = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4),
    }[optimizer]
    with strategy.scope():
        return built_classifier(made(), **options)


@pytest.mark.long("*dataset_of_unknown_size", covered_by="the other cases")
@pytest.mark.long(
    usual=(
        "*-dataset_of_unknown_size",
        "*-threads_of_a_py_dataset",
        "*-dataset_shuffled_after_a_map",
    ),
    covered_by="the other cases, devices/test_resume_on_devices.py",
)
@pytest.mark.parametrize("kind", resuming.INPUTS)
@on_ranks(2, check=identical)
def test_inputs(ctx, tmp_path, kind):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    model = resuming.assert_goes_on(
        lambda: _classifier(strategy),
        resuming.INPUTS[kind],
        lambda: BackupAndRestore(str(tmp_path / "backup"), save_freq=3),
        at=(1, 3),
        goes_on_at=_NEXT.get(kind, (1, 3)),
        between=lambda: ctx.barrier("interrupted"),
    )
    return model.get_weights()


@pytest.mark.long("*accumulating-", covered_by="the other cases")
@pytest.mark.long("*-adam-", covered_by="the other cases")
@pytest.mark.parametrize(
    ("optimizer", "middle"),
    [
        ("adam", ()),
        ("adam", ("Dropout", "GaussianNoise")),
        ("sgd", ("BatchNormalization",)),
        ("accumulating", ()),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
@on_ranks(2, check=identical)
def test_state_besides_weights(ctx, tmp_path, optimizer, middle):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    arguments = {"Dropout": (0.3,), "GaussianNoise": (0.1,), "BatchNormalization": ()}

    def build():
        layers = [getattr(keras.layers, name)(*arguments[name]) for name in middle]
        return _classifier(strategy, optimizer, middle=layers)

    model = resuming.assert_goes_on(
        build,
        resuming.arrays,
        lambda: BackupAndRestore(str(tmp_path / "backup"), save_freq=5),
        at=(1, 5),
        goes_on_at=(1, 4),
        tolerance=EXACT if optimizer != "adam" else ADAPTIVE,
        between=lambda: ctx.barrier("interrupted"),
    )
    return model.get_weights()


@pytest.mark.long(
    "*-after_an_epoch",
    "*-two_steps_at_once",
    covered_by="the other cases, parallel/keras/test_preemption.py",
)
@pytest.mark.parametrize("at", ["after_an_epochs_last_step", "after_an_epoch", "two_steps_at_once"])
@on_ranks(2, check=identical)
def test_places(ctx, tmp_path, at):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    # Six steps are an epoch; the callback of backups comes first. Of two steps at once Keras tells
    # the last one, before 3.11 the first one.
    is_last = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 11)
    told = 3 if is_last else 2
    every, interrupted, next_step, steps = {
        "after_an_epochs_last_step": (6, (1, 0), (1, 0), 1),
        "after_an_epoch": ("epoch", (2, 2), (2, 0), 1),
        "two_steps_at_once": (3, (1, told), (1, told), 2),
    }[at]
    model = resuming.assert_goes_on(
        lambda: _classifier(strategy, steps_per_execution=steps),
        resuming.INPUTS["dataset"],
        lambda: BackupAndRestore(str(tmp_path / "backup"), save_freq=every),
        at=interrupted,
        goes_on_at=next_step,
        between=lambda: ctx.barrier("interrupted"),
    )
    return model.get_weights()


@pytest.mark.long(covered_by="devices/test_checkpoint.py, parallel/keras/test_keras_callbacks.py")
@pytest.mark.parametrize("name", ["model-{epoch}-{batch}.keras", "latest.weights.h5"])
@on_ranks(2, check=identical)
def test_files_of_model_checkpoint(ctx, tmp_path, name):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    is_whole = name.endswith(".keras")

    def save():
        return ModelCheckpoint(
            str(tmp_path / name), save_freq=4, save_weights_only=not is_whole, verbose=0
        )

    def fit(model, *callbacks):
        model.fit(**resuming.INPUTS["dataset"](), epochs=2, verbose=0, callbacks=list(callbacks))

    keras.utils.set_random_seed(0)
    whole, expected = Follow(), _classifier(strategy, middle=[keras.layers.Dropout(0.3)])
    fit(expected, whole)
    keras.utils.set_random_seed(0)
    with pytest.raises(Interrupted):
        fit(
            _classifier(strategy, middle=[keras.layers.Dropout(0.3)]),
            save(),
            Follow(at=(1, 2)),
        )
    ctx.barrier("interrupted")
    path = tmp_path / name.format(epoch=2, batch=2)
    keras.utils.set_random_seed(0)
    if is_whole:
        with strategy.scope():
            received = keras.models.load_model(path)
    else:
        received = _classifier(strategy, middle=[keras.layers.Dropout(0.3)])
        with strategy.scope():
            received.optimizer.build(received.trainable_variables)
        received.load_weights(path)
    after = Follow()
    fit(received, tfdist.callbacks.ResumeFrom(path), save(), after)
    assert after.steps == [(1, 2), (1, 3), (1, 4), (1, 5)]
    assert after.logs[1] == pytest.approx(whole.logs[1], abs=EXACT)
    return received.get_weights()


def _unseeded():
    return tf.data.Dataset.from_tensor_slices(examples(96)).shuffle(96).batch(16)


def _generated():
    x, y = examples(96)
    spec = (tf.TensorSpec([None, x.shape[1]]), tf.TensorSpec([None], tf.int32))
    parts = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 96, 16)]
    return tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=spec)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(_unseeded, "shuffle has no seed"), (_generated, "a Python generator yields elements")],
    ids=["unseeded", "generator"],
)
@on_ranks(1)
def test_a_pipeline_without_a_position_is_named_once(ctx, tmp_path, data, reason):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)

    def fit(follow):
        backup = BackupAndRestore(str(tmp_path / "backup"), save_freq=4)
        _classifier(strategy).fit(data(), epochs=2, verbose=0, callbacks=[backup, follow])

    with pytest.raises(Interrupted):
        fit(Follow(at=(0, 4)))
    assert not messages
    after = Follow()
    fit(after)
    # As many steps as without the interruption.
    assert after.steps == [(0, 4), (0, 5), *((1, batch) for batch in range(6))]
    (message,) = messages
    assert message.startswith(
        "fit continues at batch 4 of epoch 1, but its data cannot be positioned exactly: " + reason
    )
