"""Tensors in protocol buffers: inputs, which are checked before memory is taken, and outputs."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from tfdist.serving.model_server.call_error import invalid

# The fields of TensorProto that hold values of a type, one element for each value.
_FIELDS = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.int32: "int_val",
    tf.int16: "int_val",
    tf.int8: "int_val",
    tf.uint16: "int_val",
    tf.uint8: "int_val",
    tf.int64: "int64_val",
    tf.uint32: "uint32_val",
    tf.uint64: "uint64_val",
    tf.bool: "bool_val",
    tf.string: "string_val",
    tf.float16: "half_val",
    tf.bfloat16: "half_val",
}
# The types of these fields, or wider ones.
_WIDE: dict[str, type] = {
    "float_val": np.float64,
    "double_val": np.float64,
    "int_val": np.int64,
    "int64_val": np.int64,
    "uint32_val": np.uint64,
    "uint64_val": np.uint64,
    "bool_val": np.bool_,
    "half_val": np.int64,
}
# Values with the same bytes in a message and in memory: the field's number, and the type.
_PACKED = {tf.float32: (5, "<f4"), tf.float64: (6, "<f8")}
_LENGTH_DELIMITED = 2
# Elements of a tensor whose message has fewer values.
_MAX_REPEATED = 1 << 20
# Numpy has no array of a larger product of sizes, even if it is empty.
_MAX_PRODUCT = 1 << 48


def decoded(name: str, proto: TensorProto) -> np.ndarray:
    """Returns the values of a tensor that a client has sent.

    Args:
      name: of the input.
      proto: the tensor, with its values in `tensor_content` or in the field of its type. Values at
        the end may be left out if they are equal to the last one, or zero if all are left out.

    Raises:
      CallError: its type is none that a model can take from outside, or the values do not fit its
        shape.
    """
    dtype = _dtype_of(name, proto.dtype)
    if proto.tensor_shape.unknown_rank or any(d.size < 0 for d in proto.tensor_shape.dim):
        raise invalid(f"input {name!r}: expected a tensor with a known shape")
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    elements = math.prod(shape)
    if math.prod(max(size, 1) for size in shape) > _MAX_PRODUCT:
        raise invalid(f"input {name!r}: expected a smaller shape, received {list(shape)}")
    if proto.tensor_content:
        return _of_content(name, dtype, shape, elements, proto.tensor_content)
    values = getattr(proto, _FIELDS[dtype])
    if len(values) > elements:
        raise invalid(
            f"input {name!r}: expected {elements} values for the shape {list(shape)}, received "
            f"{len(values)}"
        )
    # A tensor that is much larger than its message would be an attack.
    if elements > max(len(values), _MAX_REPEATED):
        raise invalid(
            f"input {name!r}: expected at most {_MAX_REPEATED} elements if values are left out, "
            f"received the shape {list(shape)} and {len(values)} values"
        )
    return _completed(_of_values(name, dtype, values), elements, dtype).reshape(shape)


def _completed(values: np.ndarray, elements: int, dtype: tf.DType) -> np.ndarray:
    """Repeats the last value, which a message may leave out; without values all are zero."""
    if len(values) == elements:
        return values
    last = values[-1] if len(values) else (b"" if dtype == tf.string else 0)
    completed = np.full(elements, last, values.dtype)
    completed[: len(values)] = values
    return completed


def _dtype_of(name: str, number: int) -> tf.DType:
    try:
        dtype = tf.dtypes.as_dtype(number)
    except TypeError:
        raise invalid(f"input {name!r}: expected a type of TensorFlow, received {number}") from None
    if dtype not in _FIELDS:
        raise invalid(
            f"input {name!r}: expected numbers, booleans or strings, received {dtype.name}"
        )
    return dtype


def _of_content(
    name: str, dtype: tf.DType, shape: tuple[int, ...], elements: int, content: bytes
) -> np.ndarray:
    if dtype == tf.string:
        raise invalid(f"input {name!r}: expected strings in string_val, received tensor_content")
    kind = np.dtype(dtype.as_numpy_dtype)
    if len(content) != elements * kind.itemsize:
        raise invalid(
            f"input {name!r}: expected {elements * kind.itemsize} bytes for {dtype.name}"
            f"{list(shape)}, received {len(content)}"
        )
    return np.frombuffer(content, kind).reshape(shape)


def _of_values(name: str, dtype: tf.DType, values: Sequence) -> np.ndarray:
    if dtype == tf.string:
        return np.array(values, object)
    wide: np.ndarray = np.fromiter(values, _WIDE[_FIELDS[dtype]], len(values))
    if dtype in (tf.float16, tf.bfloat16):
        return _narrowed(name, dtype, wide, np.dtype(np.uint16)).view(dtype.as_numpy_dtype)
    return _narrowed(name, dtype, wide, np.dtype(dtype.as_numpy_dtype))


def _narrowed(name: str, dtype: tf.DType, wide: np.ndarray, kind: np.dtype) -> np.ndarray:
    narrow = wide.astype(kind)
    # The message's integers have 32 bits for the smaller types, too.
    if kind.kind in "iu" and not np.array_equal(wide, narrow):
        raise invalid(f"input {name!r}: expected values of {dtype.name}, received others")
    return narrow


def encoded(values: np.ndarray, dtype: tf.DType) -> TensorProto:
    """Returns a tensor with its values in the field of its type, which clients read by name.

    Args:
      values: the tensor.
      dtype: its type.
    """
    if dtype not in _FIELDS:
        return tf.make_tensor_proto(values, dtype)
    if dtype in _PACKED:
        number, kind = _PACKED[dtype]
        content = values.astype(kind, copy=False).tobytes()
        head = _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content))
        proto = TensorProto.FromString(head + content)
    else:
        proto = TensorProto()
        if dtype in (tf.float16, tf.bfloat16):
            values = values.view(np.uint16)
        getattr(proto, _FIELDS[dtype]).extend(values.ravel().tolist())
    proto.dtype = dtype.as_datatype_enum
    for size in values.shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return struct.pack(f"{len(parts) + 1}B", *parts, number)
