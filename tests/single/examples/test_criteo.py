"""The generator of synthetic clicks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "keras_examples"
SIZE = 20_000


@pytest.fixture(scope="module")
def criteo() -> ModuleType:
    return load("criteo")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"keras_examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def assert_same(one: tuple, other: tuple) -> None:
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_number_always_gives_the_same_block(criteo: ModuleType) -> None:
    first = criteo.Generator(3).block(7, 500)
    generator = criteo.Generator(3)
    generator.block(1, 100)
    assert_same(first, generator.block(7, 500))
    for other in (generator.block(8, 500), criteo.Generator(4).block(7, 500)):
        assert all(not np.array_equal(a, b) for a, b in zip(first[:3], other[:3], strict=True))


def test_shapes_and_ranges(criteo: ModuleType) -> None:
    clicks = criteo.Generator(1).block(0, SIZE)
    assert clicks.numeric.shape == (SIZE, 13) and clicks.numeric.dtype == np.float32
    assert clicks.ids.shape == (SIZE, 26) and clicks.ids.dtype == np.int64
    assert clicks.label.shape == clicks.logit.shape == (SIZE,)
    assert set(clicks.label) == {0.0, 1.0} and 0.1 < clicks.label.mean() < 0.5
    assert clicks.ids.min() >= 0 and clicks.ids.max() < 2**40
    # Scattered over the whole range, not only within it.
    distinct = np.unique(clicks.ids[:, criteo.Generator(1).cardinality.argmax()])
    quarters = np.bincount(distinct >> 38, minlength=4) / len(distinct)
    np.testing.assert_allclose(quarters, 0.25, atol=0.02)


def test_numerics_are_log_normal_with_gaps(criteo: ModuleType) -> None:
    numeric = criteo.Generator(1).block(0, SIZE).numeric
    missing = np.isnan(numeric)
    np.testing.assert_allclose(missing.mean(axis=0), criteo.MISSING, atol=0.015)
    assert np.nanmin(numeric) > 0
    for column in numeric.T:
        logs = np.log(column[~np.isnan(column)])
        skewness = np.mean(((logs - logs.mean()) / logs.std()) ** 3)
        assert abs(skewness) < 0.1 and 0.4 < logs.std() < 1.6


def test_ids_are_zipfian(criteo: ModuleType) -> None:
    generator = criteo.Generator(1)
    ids = generator.block(0, SIZE).ids
    for feature in range(criteo.CATEGORICAL):
        most, skew = generator.cardinality[feature], generator.skew[feature]
        counts = np.sort(np.unique(ids[:, feature], return_counts=True)[1])[::-1]
        assert len(counts) <= most
        # The share of the k most frequent ids, by the density's integral.
        for k in (1, 10, 100):
            if k <= most:
                expected = ((k + 1) ** (1 - skew) - 1) / ((most + 1) ** (1 - skew) - 1)
                assert counts[:k].sum() / SIZE == pytest.approx(expected, abs=0.02)
    assert sorted(generator.cardinality)[::25] == [10, 2**32]


def test_every_rank_has_an_id_of_its_own(criteo: ModuleType) -> None:
    ranks = np.arange(200_000, dtype=np.uint64)
    ids = criteo.Generator(2)._scatter(np.repeat(ranks[:, np.newaxis], criteo.CATEGORICAL, 1))
    for column in ids.T:
        assert len(np.unique(column)) == len(ranks)


def test_the_signal_can_be_found_and_is_not_all(criteo: ModuleType) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        area_under_curve = load("common").area_under_curve
    finally:
        sys.path.remove(str(EXAMPLES))
    for seed in (1, 2, 3):
        clicks = criteo.Generator(seed).block(0, SIZE)
        assert 0.75 < area_under_curve(clicks.label, clicks.logit) < 0.9
        # Labels are drawn with the probabilities that the logits say.
        expected = 1 / (1 + np.exp(-clicks.logit))
        for part in np.array_split(np.argsort(clicks.logit), 10):
            assert clicks.label[part].mean() == pytest.approx(expected[part].mean(), abs=0.045)
        # The frequent ids of a feature have each their own effect, whatever goes with them.
        ids, counts = np.unique(clicks.ids[:, 0], return_counts=True)
        frequent = ids[np.argsort(counts)[-3:]]
        means = [clicks.logit[clicks.ids[:, 0] == i].mean() for i in frequent]
        assert np.ptp(means) > 0.02
    order = np.random.default_rng(0).random(SIZE)
    assert area_under_curve(clicks.label, order) == pytest.approx(0.5, abs=0.02)


def test_area_under_a_curve_by_its_definition() -> None:
    labels, scores = np.array([1, 0, 1, 0, 0]), np.array([0.9, 0.9, 0.2, 0.1, 0.5])
    # Of the six pairs: (0.9, 0.9) half, (0.9, 0.1), (0.9, 0.5), (0.2, 0.1) won, two lost.
    assert load("common").area_under_curve(labels, scores) == 3.5 / 6


def test_the_pipeline_has_the_blocks(criteo: ModuleType) -> None:
    dataset = criteo.batches(seed=5, first=10, count=3, size=64)
    assert dataset.element_spec[1].shape == (64, 26)
    generator = criteo.Generator(5)
    batches = list(dataset.as_numpy_iterator())
    assert len(batches) == 3
    for number, batch in enumerate(batches, 10):
        assert_same(batch, generator.block(number, 64)[:3])
    labels, logits = criteo.labels_and_logits(5, 10, 3, 64)
    np.testing.assert_array_equal(labels, np.concatenate([label for *_, label in batches]))
    np.testing.assert_array_equal(logits[64:128], generator.block(11, 64).logit)
