"""The initial values of a table's rows, as its servers compute them.

A row's initial value is a function of the table's seed and the row's id: it is the same on all
servers, in all workers, and after the row was evicted.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeAlias

from tfdist._types import KerasInitializer
from tfdist.ops.ps.table_config import InitializerKind, RowInitializer

_Kind = InitializerKind
_NAMED: dict[str, tuple[int, float, float]] = {
    "zeros": (_Kind.CONSTANT, 0.0, 0.0),
    "ones": (_Kind.CONSTANT, 1.0, 0.0),
    "uniform": (_Kind.UNIFORM, -0.05, 0.05),
    "random_uniform": (_Kind.UNIFORM, -0.05, 0.05),
    "normal": (_Kind.NORMAL, 0.0, 0.05),
    "random_normal": (_Kind.NORMAL, 0.0, 0.05),
    "truncated_normal": (_Kind.TRUNCATED_NORMAL, 0.0, 0.05),
}
# The standard deviation of a standard normal distribution that is truncated at -2 and 2.
_TRUNCATED = 0.87962566103423978


# A name, an initializer of Keras 3 or tf_keras, or its saved configuration; see `get`.
AnyInitializer: TypeAlias = "KerasInitializer | dict[str, Any] | str"


def get(
    initializer: AnyInitializer, table: str, input_dim: int | None, output_dim: int
) -> RowInitializer:
    """Converts an initializer to the servers' form.

    Args:
      initializer: a name such as "uniform", an initializer of Keras 3 or tf_keras, or its saved
        configuration: constants, uniform, normal, truncated normal, and, with an `input_dim`,
        initializers that scale by the number of rows, such as "glorot_uniform". Without a user's
        seed, the seed is a hash of the table's name.
      table: the table's name.
      input_dim: the number of rows, if it is limited.
      output_dim: the rows' width.

    Raises:
      ValueError: the servers cannot compute the initializer.
    """
    if isinstance(initializer, str) and initializer in _NAMED:
        kind, a, b = _NAMED[initializer]
        return RowInitializer(kind, a, b, _seed_of(table))
    if isinstance(initializer, str | dict):
        import keras

        initializer = keras.initializers.get(initializer)
    kind, a, b = _describe(initializer, input_dim, output_dim)
    # Not `seed`, which is random in Keras 3 if the user gives none.
    seed = getattr(initializer, "_init_seed", getattr(initializer, "seed", None))
    return RowInitializer(kind, a, b, seed if isinstance(seed, int) else _seed_of(table))


def _describe(
    initializer: KerasInitializer, input_dim: int | None, width: int
) -> tuple[int, float, float]:
    name = type(initializer).__name__
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    if name == "Zeros":
        return _NAMED["zeros"]
    if name == "Ones":
        return _NAMED["ones"]
    if name == "Constant":
        return _Kind.CONSTANT, float(config["value"]), 0.0
    if name == "RandomUniform":
        return _Kind.UNIFORM, float(config["minval"]), float(config["maxval"])
    if name in ("RandomNormal", "TruncatedNormal"):
        kind = _Kind.NORMAL if name == "RandomNormal" else _Kind.TRUNCATED_NORMAL
        return kind, float(config["mean"]), float(config["stddev"])
    if hasattr(initializer, "mode") and hasattr(initializer, "distribution"):
        if input_dim is None:
            raise ValueError(
                f"an embedding's initializer: {name} scales by the number of rows, which "
                "input_dim=None does not tell; expected another, or an input_dim"
            )
        return _scaled(initializer, input_dim, width)
    raise ValueError(
        f"an embedding's initializer: expected one of {', '.join(_NAMED)}, or an initializer of "
        f"Keras that the servers can compute, received {initializer!r}"
    )


def _scaled(initializer: KerasInitializer, rows: int, width: int) -> tuple[int, float, float]:
    """Converts Keras's VarianceScaling and its subclasses."""
    fan = {"fan_in": rows, "fan_out": width, "fan_avg": (rows + width) / 2}[initializer.mode]
    variance = initializer.scale / max(1.0, fan)
    if initializer.distribution == "uniform":
        return _Kind.UNIFORM, -math.sqrt(3 * variance), math.sqrt(3 * variance)
    if initializer.distribution == "untruncated_normal":
        return _Kind.NORMAL, 0.0, math.sqrt(variance)
    return _Kind.TRUNCATED_NORMAL, 0.0, math.sqrt(variance) / _TRUNCATED


def _seed_of(table: str) -> int:
    return int.from_bytes(hashlib.blake2b(table.encode(), digest_size=8).digest(), "little")
