"""Two data workers share a pipeline: each transformation that is permitted keeps every row once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.data.server import DataTask
from tfdist.job import process
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(60)

ROWS = 60
FILES = 6


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[None]:
    """A dispatcher and two data workers in this process, which is worker 0 of their job."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    places = [("data_dispatcher", 0), ("data_worker", 0), ("data_worker", 1)]

    def cluster(role: str, index: int) -> Cluster:
        return Cluster(
            workers=addresses[:1],
            data_dispatcher=addresses[1:2],
            data_workers=addresses[2:],
            task_type=role,
            task_index=index,
        )

    tasks = [DataTask(cluster(*place), Settings()) for place in places]
    tfdist.init(cluster("worker", 0))
    yield
    process.current.leave()
    for task in reversed(tasks):
        task._server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files with the rows."""
    path = tmp_path_factory.mktemp("records")
    for number in range(FILES):
        with tf.io.TFRecordWriter(str(path / f"{number}.records")) as writer:
            for row in range(number, ROWS, FILES):
                writer.write(str(row).encode())
    return str(path)


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS)


def in_two(count: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    return tf.data.Dataset.range(count), tf.data.Dataset.range(count, ROWS)


PIPELINES = {
    "range": rows,
    "slices": lambda: tf.data.Dataset.from_tensor_slices(tf.range(ROWS, dtype=tf.int64)),
    "map": lambda: rows().map(lambda row: row),
    "parallel_map": lambda: rows().map(lambda row: row, num_parallel_calls=2),
    "filter": lambda: rows().filter(lambda row: row >= 0),
    "shuffle": lambda: rows().shuffle(10),
    "two_shuffles": lambda: rows().shuffle(10).map(lambda row: row).shuffle(20),
    "batch": lambda: rows().shuffle(10).batch(7).unbatch(),
    "padded_batch": lambda: rows().padded_batch(7, padded_shapes=[]).unbatch(),
    "ragged_batch": lambda: rows().ragged_batch(7).unbatch(),
    "rebatch": lambda: rows().batch(8).rebatch(3).unbatch(),
    "window": lambda: rows().window(7).flat_map(lambda window: window),
    "flat_map": lambda: rows().shuffle(10).flat_map(tf.data.Dataset.from_tensors),
    "interleave": lambda: (
        rows().shuffle(10).interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2)
    ),
    "prefetch": lambda: rows().shuffle(10).prefetch(2),
    "concatenate": lambda: in_two(20)[0].concatenate(in_two(20)[1]),
    "sample": lambda: tf.data.Dataset.sample_from_datasets(list(in_two(30))),
    "unique": lambda: rows().unique(),
    "scan": lambda: rows().scan(tf.constant(0, tf.int64), lambda state, row: (state, row)),
    "ignore_errors": lambda: rows().ignore_errors(),
    "group_by_window": lambda: (
        rows()
        .group_by_window(lambda row: row % 3, lambda _, group: group.batch(4), window_size=4)
        .unbatch()
    ),
    "buckets": lambda: (
        rows()
        .bucket_by_sequence_length(
            lambda row: tf.cast(row % 5, tf.int32), [2, 4], [3, 3, 3], padded_shapes=[]
        )
        .unbatch()
    ),
}


def visited(dataset: tf.data.Dataset) -> list[int]:
    return sorted(int(row) for row in tfdist.data.distribute(dataset).as_numpy_iterator())


@pytest.mark.parametrize("name", PIPELINES)
def test_each_row_comes_once(name: str) -> None:
    assert visited(PIPELINES[name]()) == list(range(ROWS))


def test_an_epoch_of_repeated_rows_has_each_as_often() -> None:
    assert visited(rows().shuffle(10).repeat(2)) == sorted(2 * list(range(ROWS)))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("reader", ["interleave", "flat_map", "names"])
def test_each_record_of_files_comes_once(folder: str, shuffled: bool, reader: str) -> None:
    names = tf.data.Dataset.list_files(f"{folder}/*", shuffle=shuffled)
    if reader == "names":
        paths = sorted(map(str, Path(folder).iterdir()))
        records = tf.data.TFRecordDataset(paths)
    elif reader == "flat_map":
        records = names.flat_map(tf.data.TFRecordDataset)
    else:
        records = names.interleave(
            tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=tf.data.AUTOTUNE
        )
    if shuffled:
        records = records.shuffle(10)
    numbers = records.map(lambda record: tf.strings.to_number(record, tf.int64))
    assert visited(numbers.batch(4).unbatch()) == list(range(ROWS))
