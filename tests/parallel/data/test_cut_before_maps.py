"""Workers that map their own rows alone train as one process that maps all of them."""

from __future__ import annotations

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.example_runs import ROOT, alone, documented_command, typed
from support.processes.logical_devices import two_devices
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served, train_like_alone
from support.training.models import (
    EXACT,
    built_classifier,
    classifier,
    difference,
    examples,
    identical,
)

ROWS, BATCH, EPOCHS, WORKERS = 70, 16, 3, 3
# Of five batches, the last one of 6 rows; each worker maps up to 6 of 16 rows, and 2 of 6.
OWN_ROWS = 4 * 6 + 2


def mapped(calls):
    """Returns a function for `map` that notes its calls."""

    def noted(features):
        calls.append(1)
        return features * np.float32(0.5)

    def of_row(features, label):
        (half,) = tf.numpy_function(noted, [features], [tf.float32])
        return tf.ensure_shape(half, features.shape), label

    return of_row


def rows():
    return tf.data.Dataset.from_tensor_slices(examples(ROWS))


PIPELINES = {
    "shuffle, map": lambda of_row: rows().shuffle(ROWS, seed=3).map(of_row).batch(BATCH),
    "parallel map": lambda of_row: (
        rows()
        .shuffle(ROWS, seed=3)
        .map(of_row, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    ),
    "map, shuffle": lambda of_row: rows().map(of_row).shuffle(20, seed=3).batch(BATCH),
    "zip": lambda of_row: (
        tf.data.Dataset.zip((rows().map(of_row), tf.data.Dataset.range(ROWS)))
        .map(lambda row, _: row)
        .batch(BATCH)
    ),
    "cache": lambda of_row: rows().map(of_row).batch(BATCH).cache().shuffle(5, seed=2),
    "per row": lambda of_row: tfdist.data.per_row(
        rows().map(of_row).batch(BATCH).map(lambda x, y: (tf.sqrt(tf.abs(x)), y))
    ),
}


@pytest.mark.long("*per row", "*zip", "*parallel map", covered_by="the other cases")
@pytest.mark.parametrize("kind", PIPELINES)
@on_ranks(WORKERS, check=identical)
def test_fit_evaluate_and_predict(ctx, kind):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1))
    first = model.get_weights()
    calls = []
    data = PIPELINES[kind](mapped(calls))
    model.fit(data, epochs=EPOCHS, verbose=0)
    opened = 1 if kind == "cache" else EPOCHS
    # `fit` may look at a batch before its first step.
    assert OWN_ROWS * opened <= len(calls) <= OWN_ROWS * opened + 6 < ROWS * opened
    found = model.evaluate(data, verbose=0)
    weights = model.get_weights()
    if ctx.rank == 0:
        alone = built_classifier(keras.optimizers.SGD(0.1))
        alone.set_weights(first)
        whole = PIPELINES[kind](mapped([]))
        alone.fit(whole, epochs=EPOCHS, verbose=0)
        assert difference(weights, alone.get_weights()) <= EXACT
        np.testing.assert_allclose(found, alone.evaluate(whole, verbose=0), rtol=1e-5)
    return weights


class GivesRows(keras.utils.PyDataset):
    """Batches whose rows can be read alone, as rows of a folder of images."""

    def __init__(self, read, **kwargs):
        super().__init__(**kwargs)
        self._values = examples(ROWS)
        self._read = read

    def __len__(self):
        return -(-ROWS // BATCH)

    def num_rows(self, index):
        return min(BATCH, ROWS - index * BATCH)

    def get_rows(self, index, first, last):
        self._read.append(last - first)
        rows = slice(index * BATCH + first, index * BATCH + last)
        return tuple(part[rows] for part in self._values)

    def __getitem__(self, index):
        return self.get_rows(index, 0, self.num_rows(index))


@pytest.mark.long("*-1", covered_by="the other cases")
@pytest.mark.parametrize("threads", [1, 2])
@on_ranks(WORKERS, check=identical)
def test_a_py_dataset_that_can_give_rows(ctx, threads):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1))
    first = model.get_weights()
    read = []
    model.fit(GivesRows(read, workers=threads), epochs=EPOCHS, shuffle=False, verbose=0)
    # Keras reads two batches to learn their types.
    assert sum(read) <= OWN_ROWS * EPOCHS + 2 * BATCH + (threads > 1) * 2 * BATCH < ROWS * EPOCHS
    weights = model.get_weights()
    found = model.evaluate(GivesRows([], workers=threads), verbose=0)
    if ctx.rank == 0:
        alone = built_classifier(keras.optimizers.SGD(0.1))
        alone.set_weights(first)
        whole = GivesRows([], workers=threads)
        alone.fit(whole, epochs=EPOCHS, shuffle=False, verbose=0)
        assert difference(weights, alone.get_weights()) <= EXACT
        np.testing.assert_allclose(found, alone.evaluate(whole, verbose=0), rtol=1e-5)
    return weights


@pytest.mark.long(covered_by="single/data/test_cut_ahead.py::test_several_devices")
@on_ranks(2, check=identical)
def test_workers_with_two_devices(ctx):
    two_devices()
    strategy = tfdist.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 4
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1))
    first = model.get_weights()
    calls = []
    model.fit(PIPELINES["map, shuffle"](mapped(calls)), epochs=2, verbose=0)
    mapped_weights = model.get_weights()
    model.fit(GivesRows([]), epochs=2, shuffle=False, verbose=0)
    # Of 16 rows a worker has 8; of the last 6 rows the first worker has 4 and the second one 2.
    own = 4 * 8 + (4, 2)[ctx.rank]
    assert own * 2 <= len(calls) <= own * 2 + 8
    weights = model.get_weights()
    if ctx.rank == 0:
        alone = built_classifier(keras.optimizers.SGD(0.1))
        alone.set_weights(first)
        alone.fit(PIPELINES["map, shuffle"](mapped([])), epochs=2, verbose=0)
        assert difference(mapped_weights, alone.get_weights()) <= EXACT
        alone.fit(GivesRows([]), epochs=2, shuffle=False, verbose=0)
        assert difference(weights, alone.get_weights()) <= EXACT
    return weights


@pytest.mark.long("*tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@on_ranks(WORKERS, env={"TFDIST_ELASTIC": f"1:{WORKERS}"}, check=identical)
def test_members_of_an_elastic_job(ctx, package):
    """`fit`, `evaluate` and `predict`; each member maps its rows ahead of the steps."""
    library = importlib.import_module(package)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    library.utils.set_random_seed(0)
    with strategy.scope():
        model = built_classifier(library.optimizers.SGD(0.1), library=library)
    first = model.get_weights()
    calls = []
    data = PIPELINES["parallel map"](mapped(calls))
    model.fit(data, epochs=EPOCHS, verbose=0)
    # Of 16 rows 6, 6 and 4; the last batch may have been mapped ahead of the job's beginning.
    own = EPOCHS * (4 * (6, 6, 4)[ctx.rank] + 2)
    assert own <= len(calls) <= own + BATCH < ROWS * EPOCHS
    found = model.evaluate(data, verbose=0)
    rows_of_model = model.predict(rows().map(mapped([])).batch(BATCH), verbose=0)
    weights = model.get_weights()
    if ctx.rank == 0:
        alone = built_classifier(library.optimizers.SGD(0.1), library=library)
        alone.set_weights(first)
        whole = PIPELINES["parallel map"](mapped([]))
        alone.fit(whole, epochs=EPOCHS, verbose=0)
        assert difference(weights, alone.get_weights()) <= EXACT
        np.testing.assert_allclose(found, alone.evaluate(whole, verbose=0), rtol=1e-5)
        expected = alone.predict(rows().map(mapped([])).batch(BATCH), verbose=0)
        np.testing.assert_allclose(rows_of_model, expected, rtol=1e-4, atol=1e-6)
    return weights


@pytest.mark.long(covered_by="test_fit_evaluate_and_predict")
def test_the_example():
    """Each worker decodes half of the images; one process has the same weights."""
    example = "keras_examples/shared_maps.py"
    options = ("--limit", "1000", "--epochs", "1")
    lines = typed([*documented_command(example), *options])
    assert sorted(line for line in lines if "decoded" in line) == [
        f"[worker {rank}] decoded 500 of 1,000 images" for rank in range(2)
    ]
    (total,) = [line.rpartition(" ")[2] for line in lines if "sum of the weights" in line]
    output = alone(ROOT / example, *options)
    assert f"sum of the weights: {total}" in output and "decoded 1,000 of 1,000" in output


@on_ranks(2)
def test_batches_of_a_custom_loop(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    numbers = tf.data.Dataset.range(21)
    own, plain = (
        list(strategy.experimental_distribute_dataset(data))
        for data in (numbers.map(lambda number: number * 2).batch(8), numbers.batch(8))
    )
    assert [type(batch) for batch in own] == [type(batch) for batch in plain]
    values, before = (
        [strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in batches]
        for batches in (own, plain)
    )
    of_ranks = [
        [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18]],
        [[4, 5, 6, 7], [12, 13, 14, 15], [19, 20]],
    ]
    assert before == of_ranks[ctx.rank]
    assert values == [[2 * number for number in batch] for batch in before]


@on_job(2)
def test_workers_of_a_parameter_server(ctx):
    if served():
        return
    of_epoch = []

    def fit(model):
        calls = []
        data = PIPELINES["map, shuffle"](mapped(calls))
        history = model.fit(data, epochs=EPOCHS, verbose=0)
        of_epoch.append(len(calls) / EPOCHS)
        return history

    train_like_alone(lambda: classifier(keras.optimizers.SGD(0.1)), fit, EXACT, mode="sync")
    alone, with_servers = of_epoch
    assert ROWS <= alone < ROWS + BATCH
    assert ROWS / 2 <= with_servers < ROWS / 2 + BATCH


@pytest.mark.parametrize("batch", [5, 2])
@on_ranks(3)
def test_full_batches_need_no_agreement(ctx, batch):
    """Also where workers have different numbers of rows, or none."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    features = np.arange(4 * batch, dtype="float32")
    full = tf.data.Dataset.from_tensor_slices(features).map(lambda x: x + 1).batch(batch)
    for data, is_known in ((full, True), (full.take(3), True), (full.unbatch().batch(3), False)):
        before = strategy.communicator.stats().collectives
        distributed = strategy.experimental_distribute_dataset(data)
        shares = [strategy.experimental_local_results(part)[0].numpy() for part in distributed]
        used = strategy.communicator.stats().collectives - before
        assert (used == 0) == is_known and len(shares) == len(list(data))
        rows = tf.concat([tf.concat(shares, 0), tf.fill([4 * batch], -1.0)], 0)[: 4 * batch]
        everyone = tfdist.ops.all_gather(rows[None], strategy.communicator).numpy()
        expected = np.concatenate([part.numpy() for part in data])
        np.testing.assert_array_equal(np.sort(everyone[everyone >= 0]), np.sort(expected))
