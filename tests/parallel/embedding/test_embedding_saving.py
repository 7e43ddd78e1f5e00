"""Models that Keras and TensorFlow save include the rows of their tables."""

from __future__ import annotations

import itertools

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.training.embeddings import alone, dataset, examples, model_with, remote_embedding
from tfdist import layers
from tfdist.embedding import saved_tables

IDS_AND_STRANGERS = np.concatenate([examples(40)[0], [[10**15, -7, 3]]])


def _make(strategy, library=keras):
    with strategy.scope():
        layer = remote_embedding("adagrad", library, name="users")
        return model_with(layer, library.optimizers.SGD(0.1), library)


def _answers(model) -> list[np.ndarray]:
    """Returns a model's answers, before and after a step that needs Adagrad's slots."""
    before = model.predict(IDS_AND_STRANGERS, verbose=0)
    model.fit(dataset(16, 16), verbose=0)
    return [before, model.predict(IDS_AND_STRANGERS, verbose=0)]


def _save(model, form: str, folder) -> None:
    if form == "weights":
        model.save_weights(folder / "it.weights.h5")
    elif form == "model":
        model.save(folder / "it.keras")
    else:
        tf.train.Checkpoint(model=model).write(str(folder / "it"))


def _load(strategy, form: str, folder, library):
    if form == "model":
        with strategy.scope():
            return library.models.load_model(folder / "it.keras")
    model = _make(strategy, library)
    model.fit(dataset(16, 16), verbose=0)  # rows that do not stay
    if form == "weights":
        model.load_weights(folder / "it.weights.h5")
    else:
        read = tf.train.Checkpoint(model=model).read(str(folder / "it"))
        read.assert_existing_objects_matched()
    return model


def _names_of_tables(file: h5py.File) -> list[str]:
    found = []
    file.visit(lambda name: found.append(name) if name.endswith("/table") else None)
    return found


def _saved_ids(file: h5py.File) -> list[h5py.Dataset]:
    found = []
    file.visititems(lambda name, item: found.append(item) if name.endswith("rows_ids") else None)
    return found


@pytest.mark.long("*tf_keras-checkpoint", "*keras-weights", covered_by="the other cases")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("keras", "weights"),
        ("keras", "model"),
        ("keras", "checkpoint"),
        ("tf_keras", "checkpoint"),
    ],
)
@on_ranks(2)
def test_another_process_goes_on(ctx, name, form):
    """Each rank is a job of its own, with a server of its own."""
    library = {"keras": keras, "tf_keras": tf_keras}[name]
    strategy = alone()
    if ctx.rank == 0:
        model = _make(strategy, library)
        model.fit(dataset(96, 16), verbose=0)
        _save(model, form, ctx.tmp_path)
        np.save(ctx.tmp_path / "answers.npy", _answers(model))
    ctx.barrier("saved")
    if ctx.rank == 1:
        loaded = _load(strategy, form, ctx.tmp_path, library)
        expected = np.load(ctx.tmp_path / "answers.npy")
        np.testing.assert_allclose(_answers(loaded), expected, rtol=1e-6)


@on_ranks(1)
def test_layers_that_share_a_table_save_it_once(ctx):
    strategy = alone()

    def make():
        with strategy.scope():
            table = tfdist.EmbeddingTable(f"words{next(numbers)}", 2, optimizer="ftrl")
            left, right = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
            rows = [layers.Embedding(table=table)(x) for x in (left, right)]
            model = keras.Model([left, right], keras.layers.Concatenate()(rows))
            model.compile("sgd", "mse")
        return model

    numbers = itertools.count()
    model, ids = make(), [np.array([4, 7]), np.array([9, 4])]
    model.train_on_batch(ids, np.zeros((2, 4)))
    path = ctx.tmp_path / "it.weights.h5"
    model.save_weights(path)
    with h5py.File(path) as file:
        assert len(_saved_ids(file)) == 1
    other = make()
    other.load_weights(path)
    np.testing.assert_array_equal(other.predict(ids, verbose=0), model.predict(ids, verbose=0))


@on_ranks(1)
def test_rows_of_another_optimizer_leave_the_table_as_it_is(ctx):
    strategy = alone()
    path = ctx.tmp_path / "it.weights.h5"
    for optimizer in ("exact_adam", "adagrad"):
        with strategy.scope():
            layer = remote_embedding(optimizer, name="users")
            model = model_with(layer, keras.optimizers.SGD(0.1))
        model.fit(dataset(96, 16), verbose=0)
        if optimizer == "exact_adam":
            model.save_weights(path)
    with h5py.File(path, "a") as file:  # the same table, made by another job
        for name in _names_of_tables(file):
            del file[name]
            file[name] = np.frombuffer(layer.table.name.encode(), np.uint8)
    before = layer.table.fetch()
    with pytest.raises(ValueError, match=r"expected the slots accumulator \(4\)"):
        model.load_weights(path)
    np.testing.assert_array_equal(layer.table.fetch()[1], before[1])


@on_ranks(1)
def test_what_is_refused(ctx):
    model = _make(alone())
    model.fit(dataset(96, 16), verbose=0)
    saved_tables.MAX_BYTES = 100
    ways = {
        "save": lambda: model.save(ctx.tmp_path / "it.keras"),
        "save_weights": lambda: model.save_weights(ctx.tmp_path / "it.weights.h5"),
        "checkpoint": lambda: tf.train.Checkpoint(model=model).save(str(ctx.tmp_path / "it")),
        "export": lambda: model.export(ctx.tmp_path / "served"),
    }
    for save in ways.values():
        with pytest.raises(ValueError, match=r"more than 100 bytes.*export_table.*save_rows=False"):
            save()
    with pytest.raises(ValueError, match="'users'.*ends in '.keras'"):
        model.save(ctx.tmp_path / "it.h5")
    with pytest.raises(ValueError, match=r"saved_model.*users.*export_for_serving"):
        tf.saved_model.save(model, str(ctx.tmp_path / "saved"))
    with pytest.raises(ValueError, match="format='tf_saved_model'.*received 'onnx'"):
        model.export(ctx.tmp_path / "it.onnx", format="onnx")
    model.layers[0].table.save_rows = False
    model.save_weights(ctx.tmp_path / "it.weights.h5")
    with h5py.File(ctx.tmp_path / "it.weights.h5") as file:
        (ids,) = _saved_ids(file)
        assert ids.shape == (0,)
