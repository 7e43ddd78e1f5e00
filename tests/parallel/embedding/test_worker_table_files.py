"""Files with the rows of tables in the workers: for any number of workers, and for servers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import BackupAndRestore, ModelCheckpoint

import tfdist
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import served
from support.training import resuming
from support.training.embeddings import (
    dataset,
    examples,
    model_with,
    remote_embedding,
    rows_of,
)
from support.training.models import EXACT

ROWS, BATCH = 97, 16


def run(body, workers: int, servers: int = 0, env=None, **kwargs) -> list:
    """Runs a job; returns its workers' results."""
    roles = ("worker",) * workers + ("ps",) * servers
    with start_ranks(body, workers + servers, roles=roles, kwargs=kwargs, env=env) as ranks:
        outcomes = ranks.join(120, grace=5)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    return [outcome.result for outcome in outcomes[:workers]]


def make(strategy, optimizer: str = "adagrad"):
    """Makes a compiled model whose table is called users."""
    with strategy.scope():
        layer = remote_embedding(optimizer, name="users")
        return model_with(layer, keras.optimizers.SGD(0.1))


def answers(model) -> list[np.ndarray]:
    """Returns a model's answers, before and after steps that need Adagrad's slots."""
    before = model.predict(examples(40)[0], verbose=0)
    model.fit(dataset(33, BATCH), verbose=0)
    return [before, model.predict(examples(40)[0], verbose=0)]


def save(model, form: str, folder: str) -> None:
    if form == "weights":
        model.save_weights(f"{folder}/it.weights.h5")
    elif form == "model":
        model.save(f"{folder}/it.keras")
    else:
        tf.train.Checkpoint(model=model).write(f"{folder}/it")


def load(strategy, form: str, folder: str):
    if form == "model":
        with strategy.scope():
            return keras.models.load_model(f"{folder}/it.keras")
    model = make(strategy)
    model.fit(dataset(16, 16), verbose=0)  # rows that do not stay
    if form == "weights":
        model.load_weights(f"{folder}/it.weights.h5")
    else:
        read = tf.train.Checkpoint(model=model).read(f"{folder}/it")
        read.assert_existing_objects_matched()
    return model


def train_and_save(ctx, form, folder):
    if served():
        return None
    strategy = tfdist.MultiWorkerMirroredStrategy()
    model = make(strategy)
    model.fit(dataset(ROWS, BATCH), epochs=2, verbose=0)
    if strategy.is_chief:  # the others only serve their rows
        save(model, form, folder)
    tfdist.ops.barrier()
    return answers(model)


def load_and_train(ctx, form, folder):
    if served():
        return None
    model = load(tfdist.MultiWorkerMirroredStrategy(), form, folder)
    tfdist.ops.barrier()  # the chief has restored the rows
    return answers(model)


@pytest.mark.long(covered_by="test_snapshots_move_between_jobs")
@pytest.mark.parametrize("form", ["model", "weights", "checkpoint"])
def test_files_move_between_jobs(tmp_path, form):
    of_workers, of_servers = tmp_path / "workers", tmp_path / "servers"
    of_workers.mkdir(), of_servers.mkdir()
    expected, *_ = run(train_and_save, 3, form=form, folder=str(of_workers))
    for workers, servers in ((1, 0), (2, 0), (2, 1)):
        for found in run(load_and_train, workers, servers, form=form, folder=str(of_workers)):
            np.testing.assert_allclose(found, expected, 0, EXACT, err_msg=f"{workers}, {servers}")
    expected, *_ = run(train_and_save, 2, 1, form=form, folder=str(of_servers))
    for found in run(load_and_train, 3, form=form, folder=str(of_servers)):
        np.testing.assert_allclose(found, expected, 0, EXACT)


def train_with_snapshots(ctx, root, epochs):
    if served():
        return None
    strategy = tfdist.MultiWorkerMirroredStrategy(checkpoint_dir=root)
    model = make(strategy)
    table = model.layers[0].table
    restored = table.columns()
    if epochs:
        model.fit(dataset(ROWS, BATCH), epochs=epochs, verbose=0)
    tfdist.ops.barrier()
    return restored, table.columns()


def test_snapshots_move_between_jobs(tmp_path):
    root = str(tmp_path / "snapshots")
    env = {"TFDIST_CHECKPOINT_DIR": root}
    (first, expected), *_ = run(train_with_snapshots, 3, root=root, epochs=2)
    assert len(first["ids"]) == 0
    for workers, servers in ((3, 0), (2, 0), (2, 1), (1, 0)):
        found = run(train_with_snapshots, workers, servers, env, root=root, epochs=0)
        for restored, _ in found:
            assert set(restored["ids"]) == set(expected["ids"])
            order, expected_order = np.argsort(restored["ids"]), np.argsort(expected["ids"])
            for name in ("values", "slots"):
                np.testing.assert_array_equal(restored[name][order], expected[name][expected_order])


@on_ranks(2, timeout=120.0)
def test_a_training_goes_on(ctx):
    """As with dense variables: `BackupAndRestore` restores the rows of the step it has saved."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    folder = str(ctx.tmp_path / "backup")

    def fit(*callbacks):
        keras.utils.set_random_seed(0)
        model = make(strategy, "exact_adam")
        model.fit(dataset(ROWS, BATCH), epochs=3, verbose=0, callbacks=list(callbacks))
        return rows_of(model.layers[0])

    expected = fit()
    at = resuming.Follow((1, 5))
    with pytest.raises(resuming.Interrupted):
        fit(BackupAndRestore(folder, save_freq=4), at)
    after = resuming.Follow()
    found = fit(BackupAndRestore(folder, save_freq=4), after)
    assert after.steps[0] == (1, 5)
    np.testing.assert_allclose(found, expected, 0, EXACT)


@on_ranks(2)
def test_model_checkpoints_and_exports(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    path = str(ctx.tmp_path / "best.keras")
    model = make(strategy)
    model.fit(
        dataset(ROWS, BATCH), epochs=2, verbose=0, callbacks=[ModelCheckpoint(path, verbose=0)]
    )
    ctx.barrier("saved")
    ids = examples(40)[0]
    expected = model.predict(ids, verbose=0)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    ctx.barrier("loaded")
    np.testing.assert_allclose(loaded.predict(ids, verbose=0), expected, 0, EXACT)
    table = model.layers[0].table
    if strategy.is_chief:
        count = table.export_table(str(ctx.tmp_path / "users.npz"), slots=True)
        assert count == table.size() == len(np.unique(examples(ROWS)[0]))
        tfdist.export_for_serving(model, str(ctx.tmp_path / "served"))
    ctx.barrier("exported")
    if ctx.rank == 1:
        served_model = tf.saved_model.load(str(ctx.tmp_path / "served"))
        np.testing.assert_allclose(served_model.serve(ids), expected, 0, EXACT)
        assert table.import_table(str(ctx.tmp_path / "users.npz")) == table.size()
    ctx.barrier("imported")
    np.testing.assert_allclose(model.predict(ids, verbose=0), expected, 0, EXACT)
