"""The description of a pipeline's order, and that it is true."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.openings import DatasetSource, Openings, Target
from tfdist.data.order import reads_files, reshuffles, unknown_order
from tfdist.data.position import InputPosition

ROWS = 40


def _range():
    return tf.data.Dataset.range(ROWS)


def _generated():
    return tf.data.Dataset.from_generator(
        lambda: iter(range(ROWS)), output_signature=tf.TensorSpec([], tf.int64)
    )


# Pipelines with a known order: all later iterators have the order that they have in another
# process.
KNOWN = {
    "in_order": lambda: _range().batch(4),
    "shuffled": lambda: _range().shuffle(ROWS, seed=1).batch(4),
    "the_same_each_time": lambda: (
        _range().shuffle(ROWS, seed=1, reshuffle_each_iteration=False).repeat(2).batch(4)
    ),
    "mapped": lambda: _range().shuffle(9, seed=1).map(lambda x: x + 1, 2).batch(4).prefetch(2),
    "shuffled_twice": lambda: _range().shuffle(9, seed=1).shuffle(9, seed=2).batch(4),
    "zipped": lambda: tf.data.Dataset.zip(
        (_range().shuffle(9, seed=1), _range().shuffle(9, seed=2))
    ).batch(4),
    "interleaved": lambda: (
        _range()
        .shuffle(ROWS, seed=1)
        .interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2), cycle_length=3)
        .batch(4)
    ),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets(
        [_range().shuffle(9, seed=1), _range()], seed=4
    ).batch(4),
    "concatenated": lambda: _range().shuffle(9, seed=1).concatenate(_range()).batch(4),
}
UNKNOWN = {
    "shuffle has no seed": lambda: _range().shuffle(9),
    "repeat comes after shuffle in a dataset that is opened again": lambda: (
        _range().shuffle(9, seed=1).repeat(2)
    ),
    "cache comes after shuffle in a dataset that is opened again": lambda: (
        _range().shuffle(9, seed=1).cache()
    ),
    "concatenate comes after shuffle in a dataset that is opened again": lambda: (
        _range().concatenate(_range().shuffle(9, seed=1))
    ),
    "a Python generator yields elements": _generated,
    "deterministic=False lets elements overtake each other": lambda: _range().map(
        lambda x: x, num_parallel_calls=2, deterministic=False
    ),
    "a function of the dataset draws random numbers": lambda: _range().map(
        lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])
    ),
    "elements are chosen at random, as by sample_from_datasets, with no seed": lambda: (
        tf.data.Dataset.sample_from_datasets([_range(), _range()])
    ),
}


def _batches(iterable):
    return [np.ravel(tf.nest.flatten(batch)[0].numpy()).tolist() for batch in iterable]


def _openings(dataset):
    return Openings(DatasetSource(dataset), lambda rest: rest, dataset, lambda: True)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_order_is_the_same_in_another_process(name):
    whole, epochs = _openings(KNOWN[name]()), []
    for _ in range(3):
        epochs.append(_batches(whole))
        whole.batches = len(epochs[-1])
    for opening, batches in ((1, 0), (1, 3), (3, 0), (3, 4)):
        fresh = _openings(KNOWN[name]())
        assert fresh.go_to(Target(opening, batches, opening - 1)) == []
        assert _batches(fresh) == epochs[opening - 1][batches:]
        fresh.batches = len(epochs[0])
        if opening < 3:  # and the next epoch is the next one
            assert _batches(fresh) == epochs[opening]


@pytest.mark.parametrize("reason", UNKNOWN)
def test_reasons_of_an_unknown_order(reason):
    assert unknown_order(UNKNOWN[reason](), 2) == [reason]


def test_openings_that_were_not_read():
    """Keras opens a dataset once more at the end of each epoch, and reads nothing."""

    def make():
        return _range().shuffle(9, seed=1).shuffle(9, seed=2).batch(4)

    whole = _openings(make())
    _batches(whole)
    whole.batches = 10
    iter(whole)
    assert (whole.opening, whole.openings_read) == (2, 1)
    expected = _batches(whole)
    assert (whole.opening, whole.openings_read) == (3, 1)
    fresh = _openings(make())
    fresh.go_to(Target(3, 2, 1))
    assert _batches(fresh) == expected[2:]


def test_an_endless_dataset_that_is_opened_once_is_known():
    endless = _range().shuffle(9, seed=1).repeat().batch(4)
    assert unknown_order(endless, 1) == []
    fresh = _openings(_range().shuffle(9, seed=1).repeat().batch(4))
    assert fresh.go_to(Target(1, 25, 0)) == []
    assert _batches([next(iter(fresh))]) == _batches(endless.skip(25).take(1))


def test_an_order_that_was_drawn_is_not_drawn_again():
    openings = _openings(_range().shuffle(9, seed=1))
    _batches(openings)
    (reason,) = openings.go_to(Target(1, 3, 0))
    assert "not known what it had drawn before number 1" in reason
    (reason,) = openings.source.restore(InputPosition(seed=5))
    assert reason == "the seed of keras.utils.set_random_seed was 5 and is none"
    in_order = _openings(_range())
    _batches(in_order)
    assert in_order.go_to(Target(1, 3, 0)) == []
    assert _batches(in_order)[0] == [3]


def test_what_reads_files(tmp_path):
    files = tf.data.Dataset.from_tensor_slices(["a", "b"])
    assert reads_files(tf.data.TFRecordDataset(["a"]).batch(2))
    assert reads_files(files.interleave(tf.data.TextLineDataset).batch(2))
    assert not reads_files(_range().batch(2))
    assert reshuffles(_range().shuffle(3, seed=1).batch(2))
    assert not reshuffles(_range().batch(2))


def test_positions_are_json():
    position = InputPosition(1, 2, 3, 4, 2, 5, 6, True, 7)
    assert InputPosition.from_json(position.to_json()) == position
    for text in ("", "[1]", '{"epoch": 1, "color": 2}'):
        with pytest.raises(ValueError, match="expected JSON with epoch, batch"):
            InputPosition.from_json(text)
