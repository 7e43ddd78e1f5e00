"""`OnRankZero` refuses callbacks that need all workers, by name and at once."""

from __future__ import annotations

import importlib

import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from tfdist.callbacks import OnRankZero
from tfdist.keras.callback import Callback


def built(library, strategy, *, has_statistics):
    """A model with or without statistics that all workers read together."""
    with strategy.scope():
        library.utils.set_random_seed(0)
        layers = library.layers
        middle = [layers.BatchNormalization()] if has_statistics else [layers.Dropout(0.5)]
        return models.built_classifier(library.optimizers.SGD(0.1), library=library, middle=middle)


def train(model, *callbacks):
    return model.fit(models.dataset(64, 16), epochs=2, verbose=0, callbacks=list(callbacks))


def made(library, kind, folder):
    if kind == "ModelCheckpoint":
        # The other formats of tf_keras hold metrics, which all workers read together.
        name = "a.weights.h5" if library.__name__ == "keras" else "a.h5"
        return library.callbacks.ModelCheckpoint(str(folder / name), save_weights_only=True)
    return library.callbacks.BackupAndRestore(str(folder / "backup"))


@pytest.mark.long("*tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@pytest.mark.parametrize("kind", ["ModelCheckpoint", "BackupAndRestore"])
@on_ranks(2)
def test_local_updates_refuse_checkpoints_of_one_worker(ctx, tmp_path, kind, package):
    library = importlib.import_module(package)
    model = built(library, tfdist.LocalUpdateStrategy(4), has_statistics=False)
    expected = f"OnRankZero: expected a callback that one worker can call, received {kind}: .*all"
    with pytest.raises(ValueError, match=expected):
        train(model, OnRankZero(made(library, kind, tmp_path)))
    # No worker waits for another: the workers continue together.
    train(model, made(library, kind, tmp_path))


@pytest.mark.long("*tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@pytest.mark.parametrize("kind", ["ModelCheckpoint", "BackupAndRestore"])
@on_ranks(2)
def test_statistics_that_all_read_are_refused(ctx, tmp_path, kind, package):
    library = importlib.import_module(package)
    model = built(library, tfdist.MultiWorkerMirroredStrategy(), has_statistics=True)
    with pytest.raises(ValueError, match=f"received {kind}: .*needs all workers"):
        train(model, OnRankZero(made(library, kind, tmp_path)))
    train(model, made(library, kind, tmp_path))


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@on_ranks(2)
def test_a_checkpoint_that_needs_nobody_is_written(ctx, tmp_path, package):
    """With a checkpoint of all workers beside it, whose file has the state of all."""
    library = importlib.import_module(package)
    model = built(library, tfdist.MultiWorkerMirroredStrategy(), has_statistics=False)
    alone = tmp_path / f"{ctx.rank}" / "alone"
    alone.mkdir(parents=True)
    train(model, OnRankZero(made(library, "ModelCheckpoint", alone)))
    both = tmp_path / f"{ctx.rank}" / "both"
    both.mkdir()
    of_all = library.callbacks.ModelCheckpoint(str(both / "all.weights.h5"), save_weights_only=True)
    train(model, of_all, OnRankZero(lambda: made(library, "ModelCheckpoint", both)))
    names = [sorted(path.name for path in folder.glob("*.h5")) for folder in (alone, both)]
    name = "a.weights.h5" if package == "keras" else "a.h5"
    expected = [[name], [name, "all.weights.h5"]]
    assert names == (expected if ctx.rank == 0 else [[], []])


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@on_ranks(2)
def test_a_call_that_needs_all_workers_fails_at_once(ctx, tmp_path, package):
    """Of a callback of one's own: the read is refused, and the training continues."""
    library = importlib.import_module(package)
    refused = []

    class Save(Callback):
        def on_epoch_end(self, epoch, logs=None):
            try:
                self.model.get_weights()
            except ValueError as error:
                refused.append(str(error))

    model = built(library, tfdist.MultiWorkerMirroredStrategy(), has_statistics=True)
    train(model, OnRankZero(Save()))
    assert len(refused) == (0 if ctx.rank else 2)
    for message in refused:
        assert "OnRankZero: expected a callback that one worker can call, received " in message
        assert "Save: the collective 'variable " in message
        assert message.endswith("needs all workers")
