"""Workers with different numbers of rows: `fit` equals one process with the rows of all."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import chosen
from support.training import models, parity_models
from support.training.models import EXACT, built_classifier, difference, examples, identical
from support.training.uneven_models import CASES

STEPS = 5
# Others in test_uneven_batches.py, which weighs by the same code, and test_ps_uneven_workers.py.
LOSSES = chosen(CASES, "a scalar", "mask and sample weights")
_Policy = tf.data.experimental.AutoShardPolicy


def _like_alone(results):
    for name, case in LOSSES.items():
        of_workers = [result[name] for result in results]
        identical([[*one.weights, *one.slots, *one.history.values()] for one in of_workers])
        parity_models.assert_like_alone("MultiWorkerMirroredStrategy", name, case, of_workers[0])


# A batch of 7 rows is cut into 3, 3 and 1; the last one has 1 row, for rank 0.
@on_ranks(3, timeout=150.0, check=_like_alone)
def test_losses(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    return {name: parity_models.train(case, strategy) for name, case in LOSSES.items()}


def _rows_of_a_function(rank, features, labels, repeats):
    """Rank 0 has 5 rows of each batch of 7, rank 1 has 2."""
    first, last = ((0, 5), (5, 7))[rank]
    own = [a.reshape(STEPS, 7, *a.shape[1:])[:, first:last] for a in (features, labels)]
    own = [a.reshape(-1, *a.shape[2:]) for a in own]
    data = tf.data.Dataset.from_tensor_slices(tuple(own))
    # Shapes are known if there is no end.
    return data.batch(last - first, drop_remainder=True).repeat(None if repeats else 1)


def _rows_of_files(folder, features, labels):
    """Three files of different lengths; a worker reads one or two of them."""
    limits = [0, 11, 17, 7 * STEPS]
    for number, (first, last) in enumerate(zip(limits[:-1], limits[1:], strict=True)):
        rows = np.column_stack([features[first:last], labels[first:last]])
        np.savetxt(folder / f"{number}.csv", rows, delimiter=",")
    columns = [0.0] * (models.COLUMNS + 1)
    files = tf.data.Dataset.list_files(str(folder / "*.csv"), shuffle=False)
    lines = files.interleave(tf.data.TextLineDataset, cycle_length=1)
    rows = lines.map(lambda line: tf.stack(tf.io.decode_csv(line, columns)))
    data = rows.map(lambda row: (row[:-1], tf.cast(row[-1], tf.int32))).batch(8)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Policy.FILE
    return data.with_options(options)


@pytest.mark.long("*endless function", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["function", "endless function", "files"])
@on_ranks(2, check=identical)
def test_data_of_each_worker(ctx, kind):
    features, labels = examples(7 * STEPS)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    if kind == "files":
        data = _rows_of_files(ctx.tmp_path, features, labels) if ctx.rank == 0 else None
        tfdist.all_gather_object("written")
        data = data or _rows_of_files(ctx.tmp_path, features, labels)
        data = strategy.experimental_distribute_dataset(data)
    else:
        data = strategy.distribute_datasets_from_function(
            lambda context: _rows_of_a_function(
                context.input_pipeline_id, features, labels, kind == "endless function"
            )
        )
    batches = _batches_of_all(strategy, data)
    sizes = [len(y) for _, y in batches]
    assert sum(sizes) == 7 * STEPS
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1))
    first = model.get_weights()
    history = model.fit(data, steps_per_epoch=len(batches), verbose=0).history
    weights = model.get_weights()
    if ctx.rank == 0:
        alone = built_classifier(keras.optimizers.SGD(0.1))
        alone.set_weights(first)
        signature = (
            tf.TensorSpec([None, models.COLUMNS], tf.float32),
            tf.TensorSpec([None], tf.int32),
        )
        whole = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
        expected = alone.fit(whole, verbose=0).history
        assert difference(weights, alone.get_weights()) <= EXACT
        assert difference([*history.values()], [*expected.values()]) <= EXACT
    return [*weights, *history.values()]


def _batches_of_all(strategy, data):
    """The batches of a distributed dataset, each with the rows of all workers."""
    own = []
    for batch, _ in zip(data, range(STEPS + 3), strict=False):
        own.append([strategy.experimental_local_results(part)[0].numpy() for part in batch])
        if len(own) == STEPS and data.cardinality == tf.data.INFINITE_CARDINALITY:
            break
    of_all = tfdist.all_gather_object(own)
    steps = zip(*of_all, strict=True)
    batches = [tuple(np.concatenate(parts) for parts in zip(*step, strict=True)) for step in steps]
    return [batch for batch in batches if len(batch[1])]
