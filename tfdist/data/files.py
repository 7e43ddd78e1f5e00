"""Files of records: their list, and the places of tasks in them."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

import tensorflow as tf

from tfdist.data.queue.description import FilePosition

READERS = ("tfrecord", "lines", "parquet")
# Bytes that are read at once while records are counted.
_BLOCK = 4 << 20
_THREADS = 8
# Of a TFRecord: length and its checksum before the data, a checksum after them.
_HEADER, _FOOTER = 12, 4
_MAX_RECORD = 1 << 40


def found(patterns: str | Sequence[str]) -> list[str]:
    """Returns the files that patterns match, sorted, or that a list names, in its order.

    Raises:
      FileNotFoundError: there is no such file; names the pattern.
    """
    if not isinstance(patterns, str):
        return [name for pattern in patterns for name in found(os.fspath(pattern))]
    names = sorted(tf.io.gfile.glob(patterns))
    if not names:
        raise FileNotFoundError(f"from_files: expected files {patterns}, found none")
    return names


def names_and_sizes(paths: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Returns names, relative to the folder that all files are in, and sizes in bytes.

    Raises:
      FileNotFoundError: a file has vanished.
      ValueError: a file is listed twice, or is a folder.
    """
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"from_files: expected each file once, received {twice} twice")
    common = os.path.commonprefix([os.path.dirname(path) + "/" for path in paths])
    start = common.rfind("/") + 1
    return tuple((path[start:], size_of(path)) for path in paths)


def size_of(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
      FileNotFoundError: it has vanished.
      ValueError: it is a folder.
    """
    try:
        found = tf.io.gfile.stat(path)
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(f"from_files: {path} has vanished: {error.message}") from None
    if found.is_directory:
        raise ValueError(
            f"from_files: expected files, received the folder {path}: give a pattern of files, "
            "such as 'folder/*.csv'"
        )
    return found.length


def positions(
    paths: Sequence[str], reader: str, header: int, task_size: int
) -> tuple[FilePosition, ...]:
    """Cuts files into tasks; reads all of them, several at once.

    Args:
      paths: the files.
      reader: one of `READERS`.
      header: lines that each file begins with and that are no records.
      task_size: records of a task.

    Raises:
      ValueError: a file has a record that is not whole, or is no Parquet file; names it.
    """
    if reader == "parquet":
        return _places_of_groups(paths, task_size)
    read_index = _index_of_records if reader == "tfrecord" else _index_of_lines

    def of_file(file: int) -> list[FilePosition]:
        begun = list(_tasks(read_index(paths[file], header), task_size))
        return [
            FilePosition(file, first, records, start, end - start)
            for first, records, start, end in begun
        ]

    with futures.ThreadPoolExecutor(_THREADS) as pool:
        return tuple(p for of_one in pool.map(of_file, range(len(paths))) for p in of_one)


def _places_of_groups(paths: Sequence[str], task_size: int) -> tuple[FilePosition, ...]:
    """Cuts the row groups of Parquet files into tasks."""
    # Not above: it needs an extra.
    from tfdist.data import parquet_rows

    return tuple(
        FilePosition(file, begin, min(task_size, first + rows - begin), offset, size)
        for file, path in enumerate(paths)
        for first, rows, offset, size in parquet_rows.groups(path)
        for begin in range(first, first + rows, task_size)
    )


def read(path: str, offset: int, size: int) -> bytes:
    """Returns `size` bytes of a file.

    Raises:
      ValueError: the file has become shorter.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) != size:
        raise ValueError(
            f"{path}: expected {size} bytes at {offset}, received {len(content)}: the file has "
            "changed since the job has begun"
        )
    return content


@functools.lru_cache(1)
def offsets_of(path: str, offset: int, size: int) -> tuple[int, ...]:
    """Returns the bytes at which the TFRecords of a part of a file begin.

    Args:
      path: the file.
      offset, size: the part, as in `FilePosition`.

    Raises:
      ValueError: the file has changed.
    """
    content, found, at = read(path, offset, size), [], 0
    while at + _HEADER <= size:
        found.append(offset + at)
        (length,) = struct.unpack_from("<Q", content, at)
        at += _HEADER + length + _FOOTER
    return tuple(found)


def lines_of(content: bytes) -> list[bytes]:
    """Splits text into lines as `tf.data.TextLineDataset` does."""
    lines = content.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return [line[:-1] if line.endswith(b"\r") else line for line in lines]


def _tasks(ends: Iterator[int], task_size: int) -> Iterator[tuple[int, int, int, int]]:
    """Cuts a file into tasks.

    Args:
      ends: the byte at which the first record begins, then where each record ends.
      task_size: records of a task.

    Yields:
      First record, number of records, first byte, end.
    """
    start = end = next(ends)
    first = records = 0
    for end in ends:
        records += 1
        if records == task_size:
            yield first, records, start, end
            first, records, start = first + records, 0, end
    if records:
        yield first, records, start, end


def _index_of_records(path: str, header: int) -> Iterator[int]:
    size = size_of(path)
    block, begin, at, record = b"", 0, 0, 0
    yield 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while at < size:
            if at + _HEADER > begin + len(block):
                file.seek(at)
                block, begin = file.read(_BLOCK), at
            if len(block) - (at - begin) < _HEADER:
                raise ValueError(_truncated(path, record, at, size))
            (length,) = struct.unpack_from("<Q", block, at - begin)
            end = at + _HEADER + length + _FOOTER
            if length > _MAX_RECORD or end > size:
                raise ValueError(_truncated(path, record, at, size))
            at, record = end, record + 1
            yield at


def _truncated(path: str, record: int, at: int, size: int) -> str:
    return (
        f"{path}: expected a TFRecord file, but its record {record}, at byte {at}, is not whole: "
        f"the file ends at {size}. It is truncated, damaged, compressed, or of another format"
    )


def _index_of_lines(path: str, header: int) -> Iterator[int]:
    size_of(path)  # names a file that has vanished
    at, skipped, last = 0, 0, b"\n"
    if not header:
        yield 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(_BLOCK):
            find: Callable[[bytes, int], int] = block.find
            position = find(b"\n", 0)
            while position >= 0:
                skipped += 1
                if skipped >= header:
                    yield at + position + 1
                position = find(b"\n", position + 1)
            at, last = at + len(block), block[-1:]
    if last != b"\n":  # the last line does not end
        skipped += 1
        if skipped >= header:
            yield at
    if skipped < header:
        yield at  # there is not even a header
