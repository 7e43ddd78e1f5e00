"""The batches of the Estimator examples."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

SOURCE = Path(__file__).resolve().parents[3] / "estimator_examples" / "shared.py"
ROWS = 20
FEATURES = {
    "word": np.array([f"word {row}" for row in range(ROWS)], np.bytes_),
    "image": np.arange(ROWS * 6, dtype=np.uint8).reshape(ROWS, 2, 3),
}
LABELS = np.arange(ROWS)


@pytest.fixture(scope="module")
def shared() -> ModuleType:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("estimator_examples_shared", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    for name in ("data", "common"):
        del sys.modules[name]


def labels_of(dataset: tf.data.Dataset) -> list[int]:
    """The labels of all batches, whose features belong to them."""
    found = []
    for features, labels in dataset.as_numpy_iterator():
        found += labels.tolist()
        assert features["word"].tolist() == [f"word {row}".encode() for row in labels]
        np.testing.assert_array_equal(features["image"], FEATURES["image"][labels])
    return found


def test_all_rows_once_in_their_order(shared: ModuleType) -> None:
    dataset = shared.batches(FEATURES, LABELS, 8, training=False)
    assert dataset.element_spec == (
        {
            "word": tf.TensorSpec((None,), tf.string),
            "image": tf.TensorSpec((None, 2, 3), tf.uint8),
        },
        tf.TensorSpec((None,), tf.int64),
    )
    assert labels_of(dataset) == list(range(ROWS))


def test_workers_train_on_parts_that_do_not_overlap(shared: ModuleType) -> None:
    parts = []
    for worker in range(3):
        context = tf.distribute.InputContext(3, worker, 3)
        dataset = shared.batches(FEATURES, LABELS, 4, training=True, context=context)
        size = len(range(worker, ROWS, 3))
        found = labels_of(dataset.take(3 * size))  # 4 * 3 * size rows: all of them 12 times
        assert all(found.count(row) == 12 for row in found)
        assert found[:size] != sorted(found[:size])
        parts.append(set(found))
    assert sum(map(len, parts)) == ROWS and set.union(*parts) == set(LABELS)


def test_arrays_stay_out_of_the_graph(shared: ModuleType) -> None:
    with tf.Graph().as_default() as graph:
        images = {"image": np.zeros((1000, 100), np.uint8)}
        dataset = shared.batches(images, np.zeros(1000, np.int64), 4, training=False)
        tf.compat.v1.data.make_initializable_iterator(dataset).get_next()
        assert graph.as_graph_def().ByteSize() < 50_000
