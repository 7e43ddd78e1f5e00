"""The formats of parts. Equal rows make equal bytes: no time, machine or order of a dict counts.

A format is an object with a `suffix` and a method `open(path)`; its result has `write(columns)`,
which is called with each batch, and `close()`:

    class Csv:
        suffix = ".csv"
        def open(self, path): return CsvPart(path)
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.errors import PredictionError

Columns = Mapping[str, np.ndarray]


class RowWriter(Protocol):
    """Writes the rows of one part."""

    def write(self, columns: Columns) -> None:
        """Writes rows: for each column an array with a row in each place of its first axis."""

    def close(self) -> None:
        """Completes the file; after an error the caller removes it."""


class RowFormat(Protocol):
    """A format of parts, of this module or of the user."""

    suffix: str

    def open(self, path: str) -> RowWriter:
        """Begins a part in a new file."""


class LinesFormat:
    """A JSON object in each line."""

    suffix = ".jsonl"

    def open(self, path: str) -> RowWriter:
        """Begins a part."""
        return _Lines(open(path, "x", encoding="utf-8"))


class RecordFormat:
    """A `tf.train.Example` in each record of a TFRecord file."""

    suffix = ".tfrecord"

    def open(self, path: str) -> RowWriter:
        """Begins a part."""
        return _Records(path)


class NpzFormat:
    """An array for each column, as `numpy.savez` writes them."""

    suffix = ".npz"

    def open(self, path: str) -> RowWriter:
        """Begins a part."""
        return _Npz(path)


class _Lines:
    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, columns: Columns) -> None:
        names = list(columns)
        for row in zip(*columns.values(), strict=True):
            values = {name: _json(value) for name, value in zip(names, row, strict=True)}
            self._file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        self._file.close()


class _Records:
    def __init__(self, path: str) -> None:
        self._writer = tf.io.TFRecordWriter(path)

    def write(self, columns: Columns) -> None:
        names = sorted(columns)
        for i in range(len(columns[names[0]])):
            features = {name: _feature(name, columns[name][i]) for name in names}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            with _full_disk():
                self._writer.write(example.SerializeToString(deterministic=True))

    def close(self) -> None:
        with _full_disk():
            self._writer.close()


@contextlib.contextmanager
def _full_disk() -> Iterator[None]:
    """Raises OSError where TensorFlow has an exception of its own."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message) from error


class _Npz:
    def __init__(self, path: str) -> None:
        self._path = path
        self._batches: list[Columns] = []

    def write(self, columns: Columns) -> None:
        self._batches.append(columns)

    def close(self) -> None:
        with zipfile.ZipFile(self._path, "x", zipfile.ZIP_STORED) as archive:
            for name in self._batches[0] if self._batches else ():
                column = _fixed(name, np.concatenate([columns[name] for columns in self._batches]))
                # With a time that is always the same.
                entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
                with archive.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, column, allow_pickle=False)


def _fixed(name: str, column: np.ndarray) -> np.ndarray:
    """Returns texts as an array of fixed width, which needs no pickle."""
    if not column.dtype.hasobject:
        return column
    values = column.reshape(-1).tolist()
    if not all(isinstance(value, bytes | str) for value in values):
        raise PredictionError(f"npz: expected rows of one length, received column {name!r}")
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    if any(text.endswith(b"\0") for text in texts):
        raise PredictionError(
            f"npz: expected texts that do not end with a zero byte, which would be lost, received "
            f"column {name!r}: use another format"
        )
    return np.array(texts, np.bytes_).reshape(column.shape)


def _json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_json(one) for one in value]
    if isinstance(value, list):
        return [_json(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        raise PredictionError("jsonl: expected numbers or texts, received complex numbers")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value


def _feature(name: str, value: Any) -> tf.train.Feature:
    array = np.asarray(value)
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        if array.dtype.itemsize > 4:
            raise PredictionError(
                f"tfrecord: expected floats of 32 bits, which its records have, received "
                f"{array.dtype} in column {name!r}: cast it, or use another format"
            )
        return tf.train.Feature(float_list=tf.train.FloatList(value=flat))
    if array.dtype.kind in "iub":
        # Protobuf takes no truth values.
        whole = flat.astype(np.int64) if array.dtype.kind == "b" else flat
        return tf.train.Feature(int64_list=tf.train.Int64List(value=whole.tolist()))
    if array.dtype.kind not in "OSU":
        raise PredictionError(
            f"tfrecord: expected numbers or texts, received {array.dtype} in column {name!r}"
        )
    texts = [text.encode() if isinstance(text, str) else text for text in flat.tolist()]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
