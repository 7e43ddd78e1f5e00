"""`tf.train.Checkpoint(iterator=...)` in training loops of the user's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks

ROWS, BATCH = 44, 8  # six batches, the last one short


def _data(strategy, kind):
    dataset = tf.data.Dataset.range(ROWS)
    if kind == "function":
        return strategy.distribute_datasets_from_function(
            lambda context: (
                dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
                .shuffle(ROWS, seed=3)
                .batch(BATCH // 2)
            )
        )
    return strategy.experimental_distribute_dataset(dataset.shuffle(ROWS, seed=3).batch(BATCH))


def _rows(strategy, batch):
    return np.concatenate([part.numpy() for part in strategy.experimental_local_results(batch)])


@pytest.mark.parametrize("epoch", [0, 1], ids=["first_epoch", "second_epoch"])
@pytest.mark.parametrize("kind", ["dataset", "function"])
@on_ranks(2)
def test_goes_on_with_the_next_batch(ctx, tmp_path, kind, epoch):
    strategy = tfdist.MultiWorkerMirroredStrategy()

    @tf.function
    def two_steps(iterator):
        return next(iterator), next(iterator)

    def batches(iterator):
        return [_rows(strategy, batch) for batch in iterator]

    data = _data(strategy, kind)
    for _ in range(epoch):
        batches(iter(data))
    iterator = iter(data)
    taken = [_rows(strategy, batch) for batch in [next(iterator), *two_steps(iterator)]]
    with strategy.scope():
        steps = tf.Variable(3)
    path = tf.train.Checkpoint(steps=steps, iterator=iterator).save(
        str(tmp_path / f"rank-{ctx.rank}" / "checkpoint")
    )
    rest = batches(iterator)
    assert len(taken) + len(rest) == 6
    next_epoch = batches(iter(data))

    data = _data(strategy, kind)
    iterator = iter(data)
    steps.assign(0)
    tf.train.Checkpoint(steps=steps, iterator=iterator).restore(path).assert_consumed()
    assert steps.numpy() == 3
    for received, expected in zip(batches(iterator), rest, strict=True):
        np.testing.assert_array_equal(received, expected)
    for received, expected in zip(batches(iter(data)), next_epoch, strict=True):
        np.testing.assert_array_equal(received, expected)
    # One trace serves all iterators.
    two_steps(iter(data))
    assert two_steps.experimental_get_tracing_count() == 1
