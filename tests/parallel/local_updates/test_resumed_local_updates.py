"""Jobs with `LocalUpdateStrategy` that are interrupted within a round end as uninterrupted ones."""

from __future__ import annotations

import contextlib
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import EXACT, difference, identical
from tfdist.compression import PowerSGD, TopK
from tfdist.rules import ADMM, BMUF, EASGD, DiLoCo, PostLocalSGD, StreamingDiLoCo

H = 4
CASES = {
    "DiLoCo with top-k": {"rule": DiLoCo(), "compression": TopK(0.2, min_elements=4)},
    "DiLoCo with PowerSGD": {"rule": DiLoCo(), "compression": PowerSGD(1, min_elements=4)},
    "ADMM": {"rule": ADMM(0.5)},
    "EASGD": {"rule": EASGD(0.3), "warmup_steps": 2},
    "streaming": {"rule": StreamingDiLoCo(fragments=2, delay=1, mixing=0.25)},
}


class End(keras.callbacks.Callback):
    """Interrupts `fit` after the last step of a list of (epoch, batch)."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise KeyboardInterrupt


def made(options):
    """A strategy, and under it a model with momentum of its own on each worker."""
    strategy = tfdist.LocalUpdateStrategy(H, **options)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        return strategy, models.built_classifier(optimizer)


def backup_in(folder):
    return keras.callbacks.BackupAndRestore(str(folder), save_freq=3)


# DiLoCo and top-k have an outer optimizer and feedback.
@pytest.mark.long(usual="2-ranks-DiLoCo with top-k", covered_by="the other cases")
@pytest.mark.parametrize("case", CASES)
@on_ranks(2, check=identical)
def test_fit_goes_on_within_a_round(ctx, tmp_path, case):
    """Interrupted after 10 of 14 steps; the backup is of the ninth one: the second of a round.

    A fragment is under way then. A backup merges it, so the other training makes backups, too.
    """
    data = models.dataset(7 * 16, 16)
    _, whole = made(CASES[case])
    other = [backup_in(tmp_path / "other")] if case == "streaming" else []
    whole.fit(data, epochs=2, verbose=0, callbacks=other)
    for end in ([End(1, 2)], []):
        _, model = made(CASES[case])
        backup = backup_in(tmp_path / "backup")
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data, epochs=2, verbose=0, callbacks=[backup, *end])
    assert difference(model.get_weights(), whole.get_weights()) <= EXACT
    assert difference(models.slots(model), models.slots(whole)) <= EXACT
    return model.get_weights()


RULES = {
    "averaging": {},
    "after warm-up": {"rule": PostLocalSGD(3)},
    "BMUF": {"rule": BMUF(0.5)},
    "DiLoCo": {"rule": DiLoCo()},
    "averaged slots": {"slots": "average"},
    "slots anew": {"rule": DiLoCo(), "slots": "reset"},
    "streaming, late": {"rule": StreamingDiLoCo(fragments=2, delay=3, mixing=0.25)},
    **CASES,
}


class Stop(keras.callbacks.Callback):
    """Interrupts `fit` before an epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


# A rule with momentum, slots that are reset, several steps at once.
@pytest.mark.long(
    covered_by="test_fit_goes_on_within_a_round, test_custom_loop_goes_on_within_a_round"
)
@pytest.mark.parametrize(
    ("case", "steps_per_execution"), [*((case, 1) for case in RULES), ("averaging", 7)]
)
@on_ranks(1, 2, check=identical)
def test_a_round_that_is_open_after_the_last_batch(ctx, tmp_path, case, steps_per_execution):
    """The backup is made before the epoch ends the round; the next process makes no step in it.

    A third process continues from the second one's save without a step of its own.
    """
    data = models.dataset(7 * 16, 16)
    options = {"epochs": 2, "verbose": 0, "validation_data": models.dataset(16, 16)}

    def made_with(steps):
        model = made(RULES[case])[1]
        model.compile(model.optimizer, model.loss, steps_per_execution=steps)
        return model

    whole = made_with(steps_per_execution)
    expected = whole.fit(data, **options).history
    found = {}
    for frequency, end in ((7, End(0, 6)), ("epoch", Stop()), ("epoch", None)):
        model = made_with(steps_per_execution)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=frequency)
        callbacks = [backup, *([end] if end else [])]
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data, **options, callbacks=callbacks)
        for name, values in model.history.history.items():
            found[name] = found.get(name, []) + values
    limit = 0 if ctx.size == 1 else EXACT
    assert difference(model.get_weights(), whole.get_weights()) <= limit
    assert difference(models.slots(model), models.slots(whole)) <= limit
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=0, abs=limit)
    return model.get_weights()


@pytest.mark.long("*ADMM-11", covered_by="the other cases")
@pytest.mark.long("*-DiLoCo with top-k-*", covered_by="the other cases")
@pytest.mark.parametrize(("case", "at"), [("DiLoCo with top-k", 6), ("ADMM", 6), ("ADMM", 11)])
@on_ranks(2, check=identical)
def test_custom_loop_goes_on_within_a_round(ctx, tmp_path, case, at):
    """A checkpoint of TensorFlow within an epoch of 11 steps, or after it; then 2 steps more."""
    batches = [models.batches(*models.examples(13 * 16), 8)[2 * i + ctx.rank] for i in range(13)]

    def prepared():
        strategy, model = made(CASES[case])
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        local = strategy.training_state(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, local=local)

        def on_worker(x, y):
            with tf.GradientTape() as tape:
                loss = model.loss(y, model(x)) / strategy.num_replicas_in_sync
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

        step = tf.function(lambda x, y: strategy.run(on_worker, args=(x, y)))
        return strategy, model, checkpoint, step

    strategy, whole, checkpoint, step = prepared()
    for number, batch in enumerate(batches):
        if number == at:
            path = checkpoint.save(str(tmp_path / f"rank-{ctx.rank}" / "checkpoint"))
        if number == 11:
            strategy.synchronize()
        step(*map(tf.constant, batch))
    strategy.synchronize()
    with pytest.raises(ValueError, match="to be restored before the first step"):
        checkpoint.restore(path)
    strategy, model, checkpoint, step = prepared()
    checkpoint.restore(path.replace("rank-1", "rank-0")).assert_existing_objects_matched()
    for number, batch in enumerate(batches[at:], at):
        if number == 11:
            strategy.synchronize()
        step(*map(tf.constant, batch))
    strategy.synchronize()
    assert difference(model.get_weights(), whole.get_weights()) <= EXACT
    return model.get_weights()


class Adversaries(keras.Model):
    """Two models, each with an optimizer of its own, which are trained in one step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)
        self.build((None, models.COLUMNS))

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 3))
        self.built = True

    def compile(self):
        super().compile()
        self.optimizers = [keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.1, momentum=0.9)]

    def train_step(self, data):
        x, y = data
        layers = (self.first, self.second)
        with tf.GradientTape(persistent=True) as tape:
            made = self.second(self.first(x))
            loss = tf.reduce_mean((made - tf.cast(y[:, None], tf.float32)) ** 2)
        for layer, optimizer, sign in zip(layers, self.optimizers, (1, 0.5), strict=True):
            variables = layer.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply([sign * g for g in gradients], variables)
        return {"loss": loss}


@pytest.mark.long(covered_by="test_fit_goes_on_within_a_round")
@on_ranks(1)
def test_two_optimizers_whose_rounds_end_together(ctx, tmp_path):
    """The optimizers are not the model's own, so its file leaves their variables out."""
    data = models.dataset(7 * 16, 16)

    def trained(*callbacks):
        with tfdist.LocalUpdateStrategy(H, DiLoCo()).scope():
            keras.utils.set_random_seed(0)
            model = Adversaries()
            model.compile()
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data, epochs=2, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    whole = trained()
    for end in ([End(0, 6)], []):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=7)
        weights = trained(backup, *end)
    assert difference(weights, whole) == 0


def test_another_number_of_workers():
    """Duals become their mean, which is 0, residuals their sum's parts; anchors stay."""
    from tfdist.strategies._local_updates.saved_state import values_of_one

    saved = {
        "0/anchor/0": np.array([[5.0]]),
        "0/dual/0": np.array([[1.0], [-1.0]]),
        "0/feedback/0/residual": np.array([[1.0], [2.0]]),
        "0/slot/0": np.array([7, 8]),
    }
    found = [values_of_one(saved, rank, 3) for rank in range(3)]
    assert (
        found[0]
        == found[2]
        == {
            "0/anchor/0": [5.0],
            "0/dual/0": [0.0],
            "0/feedback/0/residual": [1.0],
            "0/slot/0": 7,
        }
    )
    assert values_of_one(saved, 1, 2)["0/dual/0"] == [-1.0]


@pytest.mark.parametrize("is_whole", [True, False])
@on_ranks(1)
def test_a_file_of_an_earlier_version(ctx, is_whole):
    """Such a file leaves positions out: they are known if the whole model was trained."""
    strategy, model = made(CASES["ADMM"])
    model.fit(models.dataset(3 * 16, 16), epochs=1, verbose=0)
    variables = [variable.value for variable in model.trainable_variables]
    local = strategy.extended.local_updates
    saved = local.saved(variables)
    older = {k: v for k, v in saved.items() if k.split("/")[-1] not in ("variables", "groups")}
    older.pop("asked")
    older["0/round/0/steps"] = np.array([2])
    if not is_whole:
        older = {k: v for k, v in older.items() if k != f"0/anchor/{len(variables) - 1}"}
    strategy, model = made(CASES["ADMM"])
    local = strategy.extended.local_updates
    variables = [variable.value for variable in model.trainable_variables]
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("tfdist").addHandler(handler)
    local.restore(variables, older)
    local.take_restored()
    logging.getLogger("tfdist").removeHandler(handler)
    said = [record.getMessage() for record in records]
    assert any("an earlier version with" in message for message in said) != is_whole
    assert [name for name in local.saved(variables) if name.endswith("round/0/steps")] == (
        ["0/round/0/steps"] if is_whole else []
    )
