"""How many orders the shuffles of datasets have drawn, read and set."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data import draws, order


def _range(rows=10):
    return tf.data.Dataset.range(rows)


def _read(dataset):
    return [int(row) for row in dataset.as_numpy_iterator()]


def _sampled():
    return tf.data.Dataset.sample_from_datasets(
        [_range(), _range().map(lambda x: x + 10)], seed=3, rerandomize_each_iteration=True
    )


DATASETS = {
    "shuffle": lambda: _range().shuffle(5, seed=1),
    "shuffle_without_a_seed": lambda: _range().shuffle(5),
    "shuffle_of_all": lambda: _range().shuffle(_range().cardinality(), seed=1),
    "random": lambda: tf.data.Dataset.random(seed=4, rerandomize_each_iteration=True).take(3),
    "sampled": _sampled,
    "below_other_parts": lambda: (
        _range().shuffle(5, seed=1).map(lambda x: x + 1).batch(2).prefetch(2).unbatch()
    ),
    "of_a_generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter(range(10)), output_signature=tf.TensorSpec([], tf.int64)
    ).shuffle(5, seed=1),
    "of_interleaved": lambda: (
        _range(3).interleave(lambda i: _range().map(lambda x: x + 10 * i)).shuffle(9, seed=1)
    ),
    "zipped_with_itself": lambda: tf.data.Dataset.zip(*[_range().shuffle(5, seed=1)] * 2).map(
        lambda a, b: 10 * a + b
    ),
}


@pytest.mark.parametrize("max_arrays", [draws._MAX_ARRAYS, -1], ids=["small", "large"])
@pytest.mark.parametrize("kind", DATASETS)
def test_orders_are_drawn_again(kind, max_arrays, monkeypatch):
    """In any sequence, and from whatever number on the draws are looked at."""
    monkeypatch.setattr(draws, "_MAX_ARRAYS", max_arrays)
    dataset = DATASETS[kind]()
    orders = [_read(dataset) for _ in range(2)]
    each = 2 if kind == "zipped_with_itself" else 1
    assert draws.drawn([dataset]) == [2 * each]
    orders += [_read(dataset) for _ in range(3)]
    assert draws.drawn([dataset]) == [5 * each]
    for number in (0, 3, 1, 4):
        assert draws.go_to([dataset], [number * each]) == []
        assert draws.drawn([dataset]) == [number * each]
        assert _read(dataset) == orders[number]
    assert len(set(map(tuple, orders))) == len(orders)


def test_branches_share_a_generator():
    rows = _range().shuffle(10, seed=1)
    orders = [_read(rows) for _ in range(4)]
    train, test = rows.take(7).batch(2).unbatch(), rows.skip(7)
    assert len(draws.generators([train, test])) == 1
    draws.go_to([train, test], [0])
    read = [_read(train), _read(test), _read(train), _read(test)]
    assert read == [orders[0][:7], orders[1][7:], orders[2][:7], orders[3][7:]]
    assert draws.drawn([test]) == [4]


def test_another_process_goes_on():
    """The order of the generators is the datasets' order, first above and then below."""

    def make():
        inner = _range().shuffle(10, seed=1)
        return inner.shuffle(3, seed=2).take(8), inner.skip(8), _range().shuffle(10, seed=3)

    whole = make()
    for dataset in (*whole, whole[0], *whole[1:] * 2):
        _read(dataset)
    drawn = draws.drawn(whole)
    assert drawn == [2, 5, 3]
    other = make()
    assert draws.go_to(other, drawn) == []
    for mine, theirs in zip(other, whole, strict=True):
        assert _read(mine) == _read(theirs)


@pytest.mark.parametrize(
    ("above", "at_once", "draws_of_opening"),
    [
        (lambda shuffled: shuffled.batch(2).prefetch(1), 1, 1),
        (lambda shuffled: shuffled.shuffle(3, reshuffle_each_iteration=False), 0, 0),
        (lambda shuffled: shuffled.repeat(), 0, 1),  # and one for each repetition
        (lambda shuffled: shuffled.cache(), 0, 1),  # unless its elements are kept already
        (lambda shuffled: _range().concatenate(shuffled), 0, 0),
        (lambda shuffled: shuffled.concatenate(_range()), 1, 1),
    ],
    ids=["read", "shuffled", "repeated", "cached", "second", "first"],
)
def test_what_draws_when_an_iterator_is_made(above, at_once, draws_of_opening):
    dataset = above(_range().shuffle(10, seed=1))
    assert len(draws.generators([dataset])) == 1
    assert len(draws.generators_of_opening(dataset)) == at_once
    iterator = iter(dataset)
    assert draws.drawn([dataset]) == [draws_of_opening]
    del iterator


@pytest.mark.parametrize(
    "make",
    [
        lambda: _range().shuffle(10, seed=1).batch(2),
        lambda: tf.data.Dataset.zip(_range().shuffle(9, seed=1), _range().shuffle(9, seed=2)),
        lambda: (lambda shuffled: tf.data.Dataset.zip(shuffled, shuffled))(_range().shuffle(9)),
        lambda: _range().shuffle(9, reshuffle_each_iteration=False).map(lambda x: x + 1),
        lambda: _range().interleave(lambda x: tf.data.Dataset.range(x).shuffle(3)),
    ],
    ids=["shuffled", "two", "one, read twice", "in one order", "in a function"],
)
def test_an_opening_may_be_drawn_without_an_iterator(make):
    dataset = make()
    assert order.only_draws_when_opened(dataset)
    before = draws.drawn([dataset])
    iter(dataset)
    opened = draws.drawn([dataset])
    draws.go_to([dataset], before)
    draws.draw_for_opening(dataset)
    assert draws.drawn([dataset]) == opened


@pytest.mark.parametrize(
    "make",
    [
        lambda: _range().shuffle(10).repeat(2),
        lambda: _range().shuffle(10).cache(),
        lambda: _range().shuffle(10).shuffle(10),
        lambda: tf.data.Dataset.sample_from_datasets([_range(), _range()]),
        lambda: _range().with_options(_warm_start()),
    ],
    ids=["repeated", "cached", "shuffled twice", "sampled", "warm start"],
)
def test_an_opening_that_may_do_more(make):
    assert not order.only_draws_when_opened(make())


def _warm_start():
    options = tf.data.Options()
    options.experimental_warm_start = True
    return options


def test_what_has_no_draws():
    fixed = _range().shuffle(5, seed=1, reshuffle_each_iteration=False)
    arrays = (np.zeros(3), np.zeros(3))
    assert draws.drawn([fixed, _range(), None, arrays]) == []
    assert draws.go_to([fixed, _range(), None, arrays], []) == []


def test_other_datasets_are_named():
    reasons = draws.go_to([_range().shuffle(5, seed=1)], [1, 2])
    assert reasons == ["its datasets have 1 shuffles that draw orders, and had 2"]


def test_unchanged():
    dataset = _range().shuffle(5, seed=1)
    first = _read(dataset)
    draws.go_to([dataset], [0])
    with draws.unchanged(dataset, None):
        assert _read(dataset) == first
    assert _read(dataset) == first
