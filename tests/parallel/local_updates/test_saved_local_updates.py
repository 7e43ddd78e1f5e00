"""Callbacks that save while workers train alone: all workers save, and one keeps its file."""

from __future__ import annotations

import importlib
import logging

import numpy as np
import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import EXACT, difference, identical
from tfdist.rules import ADMM, DiLoCo, StreamingDiLoCo

RULES = {
    "averaging": {},
    "DiLoCo": {"rule": DiLoCo()},
    "ADMM": {"rule": ADMM(0.5)},
    "streaming": {"rule": StreamingDiLoCo(fragments=2, delay=1, mixing=0.25)},
}
STEPS = 7


def built(library, **options):
    """A model with statistics of its own on each worker, which are read together."""
    with tfdist.LocalUpdateStrategy(4, **options).scope():
        library.utils.set_random_seed(0)
        optimizer = library.optimizers.SGD(0.1, momentum=0.9)
        normal = library.layers.BatchNormalization(momentum=0.8)
        return models.built_classifier(optimizer, library=library, middle=[normal])


# Of tf_keras the rule with a multiplier for each variable.
@pytest.mark.long("*averaging-keras", "*ADMM-tf_keras", covered_by="the other cases")
@pytest.mark.long(
    "*-tf_keras", "2-ranks-ADMM-keras", usual="2-ranks-ADMM-tf_keras", covered_by="the other cases"
)
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@pytest.mark.parametrize("case", RULES)
@on_ranks(2, check=identical)
def test_callbacks_save_within_rounds(ctx, tmp_path, case, package):
    """Two checkpoints and a backup, at steps of their own, in two epochs and at their ends."""
    library = importlib.import_module(package)
    own = library.callbacks.ModelCheckpoint
    # tf_keras tells formats by names.
    end = "weights.h5"

    class Own(own):
        """A subclass that decides by itself when it saves."""

        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)

    folder = tmp_path / f"rank-{ctx.rank}"
    folder.mkdir()
    callbacks = [
        own(str(folder / f"steps-{{epoch}}-{{batch}}.{end}"), save_freq=3, save_weights_only=True),
        Own(str(folder / f"{{epoch}}.{end}"), save_weights_only=True),
        library.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=2),
    ]
    model = built(library, **RULES[case])
    model.fit(models.dataset(STEPS * 16, 16), epochs=2, verbose=0, callbacks=callbacks)
    names = sorted(path.name for path in folder.iterdir())
    if ctx.rank == 0:
        assert f"1.{end}" in names
        assert f"2.{end}" in names
        assert any(name.startswith("steps-") for name in names)
    else:
        assert not names
    assert all(np.isfinite(value).all() for value in model.get_weights())
    return model.get_weights()


@pytest.mark.long(
    covered_by="parallel/local_updates/test_local_updates.py::test_checkpoints_hold_the_anchor"
)
@on_ranks(2, check=identical)
def test_the_last_file_is_the_model(ctx, tmp_path):
    """The file of the last epoch has the weights on which the workers have agreed."""
    import keras

    path = tmp_path / "last.weights.h5"
    save = keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True)
    model = built(keras, rule=DiLoCo())
    model.fit(models.dataset(STEPS * 16, 16), epochs=2, verbose=0, callbacks=[save])
    weights = model.get_weights()
    model.evaluate(models.dataset(16, 16), verbose=0)  # rank 0's file is complete
    plain = models.built_classifier(
        keras.optimizers.SGD(0.1, momentum=0.9),
        middle=[keras.layers.BatchNormalization(momentum=0.8)],
    )
    plain.load_weights(path)
    assert difference(plain.get_weights(), weights) <= EXACT
    return weights


@pytest.mark.long("*-2", covered_by="the other cases")
@pytest.mark.parametrize("save_freq", [2, "epoch"])
@on_ranks(2)
def test_a_backup_of_tf_keras_within_a_round_warns(ctx, tmp_path, save_freq):
    """Rank 0 says once that continuing from it is not exact; not at the end of an epoch."""
    import tf_keras

    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    backup = tf_keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=save_freq)
    built(tf_keras).fit(models.dataset(STEPS * 16, 16), epochs=2, verbose=0, callbacks=[backup])
    warnings = [each for each in messages if "BackupAndRestore of tf_keras" in each]
    if ctx.rank == 0 and save_freq == 2:
        (warning,) = warnings
        assert "at batch 2 of epoch 1." in warning
    else:
        assert not warnings
