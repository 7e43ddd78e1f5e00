"""Jobs with `LocalUpdateStrategy` that are interrupted within a round end as ones that are not."""

from __future__ import annotations

import contextlib

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from models import EXACT, difference, identical
from ranks import on_ranks

import tfdist
from tfdist.compression import PowerSGD, TopK
from tfdist.rules import ADMM, EASGD, DiLoCo, StreamingDiLoCo

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


def made(case):
    """A strategy, and under it a model with momentum of its own on each worker."""
    strategy = tfdist.LocalUpdateStrategy(H, **CASES[case])
    with strategy.scope():
        keras.utils.set_random_seed(0)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        return strategy, models.built_classifier(optimizer)


def backup_in(folder):
    return keras.callbacks.BackupAndRestore(str(folder), save_freq=3)


@pytest.mark.parametrize("case", CASES)
@on_ranks(2, check=identical)
def test_fit_goes_on_within_a_round(ctx, tmp_path, case):
    """Interrupted after 10 of 14 steps; the backup is of the ninth one: the second of a round.

    A fragment is under way then. A backup merges it, so the other training makes backups, too.
    """
    data = models.dataset(7 * 16, 16)
    _, whole = made(case)
    other = [backup_in(tmp_path / "other")] if case == "streaming" else []
    whole.fit(data, epochs=2, verbose=0, callbacks=other)
    for end in ([End(1, 2)], []):
        _, model = made(case)
        backup = backup_in(tmp_path / "backup")
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data, epochs=2, verbose=0, callbacks=[backup, *end])
    assert difference(model.get_weights(), whole.get_weights()) <= EXACT
    assert difference(models.slots(model), models.slots(whole)) <= EXACT
    return model.get_weights()


@pytest.mark.parametrize("case", ["DiLoCo with top-k", "ADMM"])
@on_ranks(2, check=identical)
def test_custom_loop_goes_on_within_a_round(ctx, tmp_path, case):
    """A checkpoint of TensorFlow after 6 of 11 steps."""
    batches = [models.batches(*models.examples(11 * 16), 8)[2 * i + ctx.rank] for i in range(11)]

    def prepared():
        strategy, model = made(case)
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
        if number == 6:
            path = checkpoint.save(str(tmp_path / f"rank-{ctx.rank}" / "checkpoint"))
        step(*map(tf.constant, batch))
    strategy.synchronize()
    with pytest.raises(ValueError, match="to be restored before the first step"):
        checkpoint.restore(path)
    strategy, model, checkpoint, step = prepared()
    checkpoint.restore(path.replace("rank-1", "rank-0")).assert_existing_objects_matched()
    for batch in batches[6:]:
        step(*map(tf.constant, batch))
    strategy.synchronize()
    assert difference(model.get_weights(), whole.get_weights()) <= EXACT
    return model.get_weights()


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
