"""Cyclades: rounds whose parts share no ids, and equal the serial order to the bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tfdist.data import cyclades


def updates(count: int, rows: int, seed: int = 0) -> np.ndarray:
    """Pairs of a user and an item, whose ids do not overlap."""
    draw = np.random.default_rng(seed)
    return np.stack([draw.integers(rows, size=count), rows + draw.integers(rows, size=count)], 1)


def test_components_and_parts():
    (only,) = cyclades([[], [3], [1, 2], [3, 4], [2], [5]], batch=9, workers=2)
    assert only.components == 4  # none; 3 and 4; 1 and 2; 5
    assert only.order.tolist() == list(range(6))
    assert [part.tolist() for part in only.parts] == [[0, 1, 3], [2, 4, 5]]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_parts_share_no_ids_and_keep_the_order(workers):
    ids = updates(500, 4000)
    seen = []
    for number, one in enumerate(cyclades(ids, 64, workers, seed=3, epochs=2)):
        assert len(one.parts) == workers and len(one.order) == (64 if number % 8 < 7 else 500 % 64)
        used = [set(ids[part].ravel().tolist()) for part in one.parts]
        assert sum(map(len, used)) == len(set().union(*used))
        position = {update: i for i, update in enumerate(one.order.tolist())}
        for part in one.parts:
            places = [position[update] for update in part.tolist()]
            assert places == sorted(places)
        assert sorted(np.concatenate(one.parts).tolist()) == sorted(one.order.tolist())
        assert workers == 1 or max(map(len, one.parts)) < 0.75 * len(one.order)
        seen.append(one.order)
    first, second = np.concatenate(seen[:8]), np.concatenate(seen[8:])
    assert sorted(first) == sorted(second) == list(range(500))
    assert first.tolist() != second.tolist() != list(range(500))
    again = [one.order for one in cyclades(ids, 64, workers, seed=3, epochs=2)]
    assert all(np.array_equal(a, b) for a, b in zip(seen, again, strict=True))


def factorize(table: np.ndarray, pair: np.ndarray) -> None:
    """A step of matrix factorization in float32: the order of steps matters to its last bit."""
    user, item = table[pair[0]].copy(), table[pair[1]].copy()
    error = np.float32(1.0) - user @ item
    table[pair[0]] += np.float32(0.1) * error * item
    table[pair[1]] += np.float32(0.1) * error * user


def test_any_interleaving_equals_the_serial_order_to_the_bit():
    ids = updates(600, 40)
    start = np.random.default_rng(1).normal(size=(80, 4)).astype("float32")
    serial, parallel, careless = start.copy(), start.copy(), start.copy()
    draw = random.Random(2)
    for one in cyclades(ids, 12, 3, seed=5):
        for update in one.order:
            factorize(serial, ids[update])
        left = [list(part) for part in one.parts]
        while any(left):
            factorize(parallel, ids[draw.choice([part for part in left if part]).pop(0)])
        for update in draw.sample(list(one.order), len(one.order)):
            factorize(careless, ids[update])
    np.testing.assert_array_equal(serial, parallel)
    assert np.any(serial != careless)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (([1], 0, 1), ValueError, "batch of at least 1, received 0"),
        (([1], 1, 1.5), ValueError, "workers of at least 1, received 1.5"),
        (([1], 1, 1, None, 0), ValueError, "epochs of at least 1, received 0"),
        (([1.5], 1, 1), TypeError, "integer ids, received float64"),
        ((np.zeros([2, 2, 2], int), 1, 1), ValueError, r"received \(2, 2, 2\)"),
        (([[[1]]], 1, 1), ValueError, r"a list of ids per update, received \(1, 1\)"),
    ],
)
def test_bad_arguments(arguments, error, said):
    with pytest.raises(error, match=f"cyclades: expected .*{said}"):
        cyclades(*arguments)


def test_no_updates():
    assert list(cyclades(np.zeros([0, 2], int), 4, 2)) == []
