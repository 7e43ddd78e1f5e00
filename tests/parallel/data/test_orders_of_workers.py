"""`fit` says when workers that split batches do not read the same ones."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.training.images import decode_and_augment, image_model, write_images
from support.training.models import COLUMNS, built_classifier, examples

ROWS, BATCH = 24, 8


def _messages():
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    return messages


def _rows(shuffled):
    rows = tf.data.Dataset.from_tensor_slices(examples(ROWS))
    return (rows.shuffle(ROWS) if shuffled else rows).batch(BATCH)


@on_ranks(2)
def test_shuffles_with_other_seeds_are_named(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    messages = _messages()
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1))
    # The seed of the program, and whether the data and the validation data are shuffled.
    for seed, *are_shuffled in [
        (None, False, False),
        (None, True, False),
        (1, True, True),
        (2 + ctx.rank, False, True),
    ]:
        if seed is not None:
            keras.utils.set_random_seed(seed)
        messages.clear()
        data, test = map(_rows, are_shuffled)
        model.fit(data, validation_data=test, verbose=0)
        is_wrong = any(are_shuffled) and seed != 1
        assert len(messages) == (is_wrong and ctx.rank == 0), (seed, messages)
        assert all("shuffles have other seeds on other workers" in each for each in messages)


def _loop(strategy):
    for _ in range(2):
        for _ in strategy.experimental_distribute_dataset(_rows(True)):
            pass


def _tf_keras(strategy):
    with strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Input((COLUMNS,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(_rows(True).map(lambda x, y: (x, x[:, :1])), epochs=2, verbose=0)


def _evaluate(strategy):
    with strategy.scope():
        model = built_classifier("sgd")
    data = _rows(True)
    for _ in range(2):
        model.evaluate(data, verbose=0)


@pytest.mark.parametrize(("use", "count"), [(_loop, 2), (_tf_keras, 1), (_evaluate, 1)])
@on_ranks(2)
def test_shuffles_without_a_seed_are_named(ctx, use, count):
    """Once for each dataset, by rank 0."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    messages = _messages()
    use(strategy)
    found = [each for each in messages if "shuffles have other seeds on other workers" in each]
    assert len(found) == (count if ctx.rank == 0 else 0), messages
    messages.clear()
    keras.utils.set_random_seed(1)
    use(strategy)
    assert not messages


@pytest.mark.parametrize("mode", ["async", "sync"])
@on_job(2)
def test_workers_of_parameter_servers(ctx, mode):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode=mode)
    with strategy.scope():
        model = built_classifier("sgd")
    meet(ctx, "made")
    messages = _messages()
    model.fit(_rows(True), validation_data=_rows(True), verbose=0)
    found = [each for each in messages if "shuffles have other seeds on other workers" in each]
    assert len(found) == (ctx.rank == 0)


@on_ranks(2)
def test_files_of_each_worker_are_named_once(ctx, tmp_path):
    paths = write_images(tmp_path, 12) if ctx.rank == 0 else None
    strategy = tfdist.MultiWorkerMirroredStrategy()
    paths = tfdist.broadcast_object(paths)
    messages = _messages()
    keras.utils.set_random_seed(2)
    with strategy.scope():
        model = image_model()
    policies = tf.data.experimental.AutoShardPolicy
    for policy in (policies.DATA, policies.FILE, policies.AUTO):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        # TensorFlow cannot shard a zip with a counter.
        records = tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TFRecordDataset)
        images = records.map(lambda record: decode_and_augment(record, np.int64(0)))
        data = images.batch(4).with_options(options)
        for _ in range(2):
            model.evaluate(data, verbose=0)
        assert len(messages) == (policy == policies.AUTO and ctx.rank == 0), messages
    assert all("AutoShardPolicy.DATA all workers read all files" in each for each in messages)
