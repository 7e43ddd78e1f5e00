"""Datasets whose records are dealt out as tasks: ranges of numbers, arrays, and files."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdist import _providers
from tfdist._types import Nested
from tfdist.data import feed as feeds
from tfdist.data import files
from tfdist.data.feed import Feed
from tfdist.data.pipeline import mark
from tfdist.data.queue import description
from tfdist.data.queue.client import OwnedTask
from tfdist.data.queue.description import Description, Spec

_LEASE = 30.0
# Rows at each end of an array that are part of its checksum.
_SAMPLED_ROWS = 64
_READ_AHEAD = 256 << 10
# Numbers of records, and none.
_NUMBERS, _NONE = tf.TensorSpec([None], tf.int64), np.zeros(0, np.int64)
_SOURCE = "tfdist_source"


@dataclasses.dataclass(frozen=True)
class RecordSource:
    """Reads the records of tasks, whoever deals them out.

    Attributes:
      spec: the data.
      describe: cuts the data into tasks; reads all files.
      read: returns the content that `signature` describes, of some rows of a task. The rows are
        consecutive unless the spec shuffles.
      signature: of `read`.
      records_of: makes a dataset of records of a dataset of such contents.
      paths: of the files.
    """

    spec: Spec
    describe: Callable[[], Description]
    read: Callable[[OwnedTask, np.ndarray], Nested]
    signature: Nested
    records_of: Callable[[tf.data.Dataset], tf.data.Dataset]
    paths: Sequence[str] = ()


def source_of(dataset: object) -> RecordSource | None:
    """Returns the source of a dataset as a `from_...` function has returned it, else `None`."""
    return getattr(dataset, _SOURCE, None)


def from_ranges(
    records: int,
    task_size: int = 1000,
    *,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    lease: float = _LEASE,
    name: str = "train",
) -> tf.data.Dataset:
    """Deals out the numbers from 0 to `records` - 1, in tasks.

    Args:
      records: how many numbers.
      task_size: how many of them a worker takes at a time.
      epochs: how often all records are dealt out, in the job's life; `None`: for ever, and `fit`
        ends after its own number of epochs.
      shuffle: whether each epoch deals the tasks in another order, and shuffles the records of a
        task.
      seed: of these orders; `None` draws one, the same for all workers.
      lease: seconds after which the tasks of a silent worker go to others. A worker renews its
        leases itself, also during a long step; it is silent when its process is dead or stopped.
      name: of the queue. Workers share the queues of equal names; a second data set of a job, such
        as the one for evaluation, needs another name.

    Returns:
      A dataset of int64 scalars: in each process the scalars that it has taken. Going through it
      once is an epoch.

    Raises:
      ValueError: an argument is out of its range.

    Example:

    ```python
    rows = tfdist.data.from_ranges(60_000, task_size=1000, shuffle=True)
    dataset = rows.batch(64).map(lambda i: (tf.gather(images, i), tf.gather(labels, i)))
    ```
    """
    spec = Spec("ranges", records, task_size, "", (), epochs, shuffle, seed, lease)
    unbatch = tf.data.Dataset.unbatch
    return _dataset(name, spec, lambda: Description(spec), _numbers, _NONE, _NUMBERS, unbatch)


def from_arrays(
    arrays: Nested,
    task_size: int = 1000,
    *,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    lease: float = _LEASE,
    name: str = "train",
) -> tf.data.Dataset:
    """Deals out the rows of arrays, in tasks; every worker has all arrays.

    Args:
      arrays: an array, or nested tuples and dicts of them, of equal length.
      task_size: how many rows a worker takes at a time.
      epochs: as for `from_ranges`.
      shuffle: as for `from_ranges`.
      seed: as for `from_ranges`.
      lease: as for `from_ranges`.
      name: as for `from_ranges`.

    Returns:
      A dataset with the structure of `arrays`: in each process the rows that it has taken. Going
      through it once is an epoch.

    Raises:
      ValueError: an argument is out of its range, or the arrays differ in length.

    Example:

    ```python
    dataset = tfdist.data.from_arrays((images, labels), shuffle=True).batch(64)
    ```
    """
    arrays = tf.nest.map_structure(np.asarray, arrays)
    columns = tf.nest.flatten(arrays)
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError(
            f"from_arrays: expected arrays of one length, received {[c.shape for c in columns]}"
        )
    about = "; ".join(f"{c.dtype} {c.shape} {_checksum(c):08x}" for c in columns)
    (records,) = lengths
    spec = Spec("arrays", records, task_size, about[:4000], (), epochs, shuffle, seed, lease)
    tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)

    def rows_of(numbers: tf.Tensor) -> Nested:
        # Here, not in the generator, whose Python would hold up the training.
        if shuffle:
            return tf.nest.map_structure(lambda column: tf.gather(column, numbers), tensors)
        first, count = tf.reduce_sum(numbers[:1]), tf.size(numbers, tf.int64)
        return tf.nest.map_structure(lambda column: column[first : first + count], tensors)

    def records_of(numbers: tf.data.Dataset) -> tf.data.Dataset:
        return numbers.map(rows_of).unbatch()

    return _dataset(name, spec, lambda: Description(spec), _numbers, _NONE, _NUMBERS, records_of)


def from_files(
    patterns: str | Sequence[str],
    reader: str = "tfrecord",
    task_size: int = 1000,
    *,
    header: int = 0,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    lease: float = _LEASE,
    name: str = "train",
) -> tf.data.Dataset:
    """Deals out the records of files, in tasks.

    Every worker must have the same files, perhaps in another folder. One worker reads them all
    once, before the first epoch, to count their records.

    Args:
      patterns: a pattern such as "/data/train-*.tfrecord", or a list of paths and patterns; local
        or of any file system of `tf.io.gfile`. Files must not be compressed.
      reader: "tfrecord", "lines" or "parquet", whose row groups are cut into tasks.
      task_size: how many records of a file a worker takes at a time.
      header: lines that each file begins with and that are no records.
      epochs: as for `from_ranges`.
      shuffle: as for `from_ranges`.
      seed: as for `from_ranges`.
      lease: as for `from_ranges`.
      name: as for `from_ranges`.

    Returns:
      A dataset of string scalars, or of dicts of columns from Parquet files: in each process the
      records that it has taken. Going through it once is an epoch.

    Raises:
      FileNotFoundError: no file matches.
      ValueError: an argument is out of its range; a file is listed twice, or is no Parquet file.
      ImportError: Parquet files need pyarrow.

    Example:

    ```python
    records = tfdist.data.from_files("/data/train-*.tfrecord", shuffle=True)
    dataset = records.batch(64).map(lambda r: tf.io.parse_example(r, features))
    ```
    """
    if reader not in files.READERS:
        raise ValueError(
            f"from_files: expected a reader of {', '.join(files.READERS)}, received {reader!r}"
        )
    if header < 0 or (header and reader != "lines"):
        raise ValueError(f"from_files: expected a header of lines only, received {header}")
    paths = files.found(patterns)
    sizes = files.names_and_sizes(paths)
    about = f"{reader}, header {header}"
    spec = Spec("files", 0, task_size, about, sizes, epochs, shuffle, seed, lease)

    def describe() -> Description:
        return Description(spec, files.positions(paths, reader, header, task_size))

    def path_of(task: OwnedTask) -> str:
        file = task.place[0]
        size = files.size_of(paths[file])
        if size != sizes[file][1]:
            raise ValueError(
                f"{paths[file]}: expected {sizes[file][1]} bytes, received {size}: the file has "
                "changed since the job has begun"
            )
        return paths[file]

    if reader == "parquet":
        # Not above: it needs an extra.
        from tfdist.data import parquet_rows

        columns = parquet_rows.signature(paths[0])

        def read_rows(task: OwnedTask, rows: np.ndarray) -> Nested:
            found = parquet_rows.read(path_of(task), task.place[3], task.size)
            return {column: found[column][rows] for column in columns}

        empty_rows = {
            column: np.zeros([0, *kind.shape[1:]], kind.dtype.as_numpy_dtype)
            for column, kind in columns.items()
        }
        unbatch = tf.data.Dataset.unbatch
        return _dataset(name, spec, describe, read_rows, empty_rows, columns, unbatch, paths)

    if reader == "lines":

        def read_lines(task: OwnedTask, rows: np.ndarray) -> Nested:
            path, (_, offset, size, _) = path_of(task), task.place
            lines = files.lines_of(files.read(path, offset, size))
            if len(lines) != task.size:
                raise ValueError(
                    f"{path}: expected {task.size} lines from byte {offset} on, received "
                    f"{len(lines)}: the file has changed since the job has begun"
                )
            return np.array(lines, object)[rows]

        nothing = np.zeros(0, object)
        signature: Nested = tf.TensorSpec([None], tf.string)
        unbatch = tf.data.Dataset.unbatch
        return _dataset(name, spec, describe, read_lines, nothing, signature, unbatch, paths)

    def read_records(task: OwnedTask, rows: np.ndarray) -> Nested:
        path, (_, offset, size, _) = path_of(task), task.place
        if not shuffle and rows.size and rows[0]:
            # Not through the records before: one of them may be damaged.
            offset = files.offsets_of(path, offset, size)[rows[0]]
        return path, np.int64(offset), np.int64(task.size), rows

    signature = (
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([None], tf.int64),
    )
    empty = ("", np.int64(0), np.int64(0), np.zeros(0, np.int64))
    return _dataset(name, spec, describe, read_records, empty, signature, _records(shuffle), paths)


def _numbers(task: OwnedTask, rows: np.ndarray) -> np.ndarray:
    return task.place[0] + rows


def _dataset(
    name: str,
    spec: Spec,
    describe: Callable[[], Description],
    read: Callable[[OwnedTask, np.ndarray], Nested],
    nothing: Nested,
    signature: Nested,
    records_of: Callable[[tf.data.Dataset], tf.data.Dataset],
    paths: Sequence[str] = (),
) -> tf.data.Dataset:
    """Makes the dataset of a queue.

    Args:
      name: of the queue.
      spec, describe: as for `Feed`.
      read: returns what `signature` says of the given rows of a task.
      nothing: the same of no rows.
      signature: of `read`.
      records_of: makes a dataset of records of one of such tensors.
      paths: of the files.
    """
    try:
        description.check(spec)
    except description.DescriptionError as error:
        raise ValueError(f"tfdist.data: {error}") from None
    feed = feeds.current.feed(name, spec, describe)
    _providers.provider("follow_data_tasks")()

    def chunks() -> Iterator[Nested]:
        for task in feed.tasks():
            if task is None:
                yield nothing
            else:
                yield read(task, _rows(feed, task))

    options = tf.data.Options()
    # A worker reads its own part: no strategy may cut it once more.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = True
    read_tasks = tf.data.Dataset.from_generator(chunks, output_signature=signature)
    dataset = mark(records_of(read_tasks).with_options(options), feed)
    setattr(dataset, _SOURCE, RecordSource(spec, describe, read, signature, records_of, paths))
    return dataset


def _rows(feed: Feed, task: OwnedTask) -> np.ndarray:
    """Returns the rows of a task that are still to be trained, in the order of this epoch."""
    if not feed.spec.shuffle:
        return np.arange(task.first, task.size)
    # The same for every owner of the task, so that a later one begins where the former one was.
    generator = np.random.Generator(np.random.PCG64([feed.seed, task.epoch, task.task]))
    return generator.permutation(task.size)[task.first :]


def _records(shuffle: bool) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    def records_of_task(
        path: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, rows: tf.Tensor
    ) -> tf.data.Dataset:
        # TFRecordDataset itself cannot begin within a file.
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=_READ_AHEAD, byte_offsets=[offset]
        )
        records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        if not shuffle:
            return records.take(tf.size(rows, tf.int64))
        whole = records.take(size).batch(tf.maximum(size, 1))
        return whole.flat_map(
            lambda task: tf.data.Dataset.from_tensor_slices(tf.gather(task, rows))
        )

    return lambda tasks: tasks.flat_map(records_of_task)


def _checksum(column: np.ndarray) -> int:
    if column.dtype.hasobject:
        return 0
    ends = np.concatenate([column[:_SAMPLED_ROWS], column[-_SAMPLED_ROWS:]])
    return zlib.crc32(np.ascontiguousarray(ends).tobytes())
