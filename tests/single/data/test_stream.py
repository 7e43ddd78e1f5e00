"""Which records of a stream are trained, when batches of them are."""

from __future__ import annotations

import random

from tfdist.data.stream import Batching, Stream


def test_batches_span_tasks():
    stream = Stream()
    stream.read(7, 0, 10)
    stream.read(2, 4, 10)
    for records in (4, 4, 4, 4):
        stream.batch(records)
    assert stream.positions() == {7: 0, 2: 4} and stream.is_behind
    assert stream.train(2) == 8 and stream.positions() == {7: 8, 2: 4}
    assert stream.train(1) == 4 and stream.positions() == {7: 10, 2: 6}
    # Fewer batches than a step may use are left at the end.
    assert stream.train(3) == 4 and stream.positions() == {7: 10, 2: 10}
    assert not stream.is_behind and stream.train(1) == 0


def test_batches_of_one_size_form_themselves():
    for drops_rest in (False, True):
        told = []
        stream = Stream(Batching(4, drops_rest))
        stream.read(7, 0, 3)
        assert not stream.has_batches
        stream.read(2, 4, 10)
        stream.tell(told.append)  # the first two batches are there
        stream.read(5, 0, 1)
        stream.finish()
        whole = [[(7, 0, 3), (2, 4, 5)], [(2, 5, 9)]]
        assert told == whole + ([] if drops_rest else [[(2, 9, 10), (5, 0, 1)]])
        assert stream.train(9) == (8 if drops_rest else 10)


def test_leases_that_have_ended_are_forgotten():
    stream = Stream()
    for lease in range(4):
        stream.read(lease, 0, 2)
    stream.batch(5)
    stream.train(1)
    positions = stream.positions()
    assert positions == {0: 2, 1: 2, 2: 1, 3: 0}
    stream.forget(positions, lost=[3])
    assert stream.positions() == {2: 1}
    # The records of the lost one are still among the counted ones.
    stream.read(4, 0, 2)
    stream.batch(3)
    stream.batch(2)
    stream.train(2)
    assert stream.positions() == {2: 2, 4: 2}


def test_what_was_not_reported_yet_is_kept():
    stream = Stream()
    stream.read(1, 0, 4)
    stream.batch(4)
    before = stream.positions()
    stream.train(1)
    stream.forget(before, lost=[])
    assert stream.positions() == {1: 4}


def test_random_batches_count_each_record_once():
    rng = random.Random(3)
    stream = Stream()
    sizes = {lease: rng.randint(1, 9) for lease in range(50)}
    for lease, size in sizes.items():
        stream.read(lease, 0, size)
    left, trained = sum(sizes.values()), 0
    while left:
        rows = min(left, rng.randint(1, 7))
        stream.batch(rows)
        left -= rows
    while stream.is_behind:
        trained += stream.train(rng.randint(1, 3))
        assert sum(stream.positions().values()) == trained
    assert trained == sum(sizes.values())


def test_batches_of_an_earlier_pass_are_trained_first():
    stream = Stream(Batching(2), again=0, before=2)
    stream.read(1, 0, 4)
    assert stream.waiting == 4 and stream.train(1) == 0
    assert stream.train(2) == 2 and stream.waiting == 1 and stream.positions() == {1: 2}
    assert stream.train(5) == 2 and not stream.has_batches
