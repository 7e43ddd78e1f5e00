"""Rows of Parquet files: their places in row groups, and their columns as arrays."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._extras import install_command


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"from_files: reader 'parquet' needs pyarrow: {install_command('parquet')}"
        ) from error
    return pyarrow.parquet


def groups(path: str) -> Iterator[tuple[int, int, int, int]]:
    """Yields, for each row group of a file, its first row, its rows, its first byte and its bytes.

    Raises:
      ValueError: it is no Parquet file.
    """
    about = _opened(path).metadata
    first = 0
    for i in range(about.num_row_groups):
        group = about.row_group(i)
        column = group.column(0)
        offset = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset:
            offset = min(offset, column.dictionary_page_offset)
        size = sum(group.column(j).total_compressed_size for j in range(group.num_columns))
        yield first, group.num_rows, offset, size
        first += group.num_rows


def signature(path: str) -> dict[str, tf.TensorSpec]:
    """Returns the types of a file's columns; the number of rows is unknown.

    Raises:
      ValueError: it is no Parquet file, or a column has another type than numbers, texts and lists
        of a fixed number of numbers; names it.
    """
    import pyarrow

    found = {}
    for field in _opened(path).schema_arrow:
        kind, shape = field.type, [None]
        while pyarrow.types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, [*shape, kind.list_size]
        found[field.name] = tf.TensorSpec(shape, _dtype(kind, path, field))
    return found


def read(path: str, first: int, count: int) -> dict[str, np.ndarray]:
    """Returns the columns of some rows.

    Args:
      path: the file.
      first: the first row.
      count: how many; all are in one row group.

    Raises:
      ValueError: a column has no value in a row; names it.
    """
    begin = 0
    about = _opened(path).metadata
    for i in range(about.num_row_groups):
        end = begin + about.row_group(i).num_rows
        if first < end:
            break
        begin = end
    table = _group(path, i).slice(first - begin, count)
    return {name: _array(table[name], path, name) for name in table.column_names}


@functools.lru_cache(1)
def _group(path: str, group: int) -> Any:
    """Returns a row group; the tasks of one follow each other."""
    return _opened(path).read_row_group(group)


@functools.lru_cache(8)
def _opened(path: str) -> Any:
    parquet = _parquet()
    import pyarrow

    try:
        if os.path.exists(path):
            return parquet.ParquetFile(path)
        with tf.io.gfile.GFile(path, "rb") as file:  # of another file system
            return parquet.ParquetFile(pyarrow.BufferReader(file.read()))
    except (pyarrow.ArrowException, tf.errors.OpError) as error:
        raise ValueError(f"{path}: expected a Parquet file: {error}") from error


def _dtype(kind: Any, path: str, field: Any) -> tf.DType:
    from pyarrow import types

    if any(is_text(kind) for is_text in (types.is_string, types.is_binary, types.is_large_string)):
        return tf.string
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return tf.as_dtype(kind.to_pandas_dtype())
    raise ValueError(
        f"{path}: expected columns of numbers, texts, and lists of a fixed number of numbers, "
        f"received {field.name!r} of {field.type}"
    )


def _array(column: Any, path: str, name: str) -> np.ndarray:
    from pyarrow import types

    if column.null_count:
        raise ValueError(f"{path}: expected a value in each row of {name!r}, found none in some")
    array = column.combine_chunks()
    shape = [len(array)]
    while types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    if not types.is_primitive(array.type) or types.is_boolean(array.type):
        values = array.to_pylist()
        dtype: Any = np.bool_ if types.is_boolean(array.type) else object
        flat = np.empty(len(values), dtype)
        flat[:] = [v.encode() if isinstance(v, str) else v for v in values]
    else:
        flat = array.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)
