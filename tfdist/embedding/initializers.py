"""What the rows of a table begin as, in the terms of its servers.

A row's first value is a function of the table's seed and its id: the same on all servers and in
all workers, and after the row was evicted.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from tfdist import ops

_Kind = ops.InitializerKind
_NAMED: dict[str, tuple[int, float, float]] = {
    "zeros": (_Kind.CONSTANT, 0.0, 0.0),
    "ones": (_Kind.CONSTANT, 1.0, 0.0),
    "uniform": (_Kind.UNIFORM, -0.05, 0.05),
    "random_uniform": (_Kind.UNIFORM, -0.05, 0.05),
    "normal": (_Kind.NORMAL, 0.0, 0.05),
    "random_normal": (_Kind.NORMAL, 0.0, 0.05),
    "truncated_normal": (_Kind.TRUNCATED_NORMAL, 0.0, 0.05),
}
# The standard deviation of a normal distribution that was cut off at two of its own.
_TRUNCATED = 0.87962566103423978


def get(initializer: Any, table: str, input_dim: int | None, output_dim: int) -> ops.RowInitializer:
    """Describes an initializer to the servers.

    Args:
      initializer: a name such as "uniform", an initializer of Keras 3 or tf_keras, or what Keras
        saves of one: constants, uniform, normal, truncated normal, and, where the number of rows is
        known, those that scale by it, such as "glorot_uniform". Without a seed of the user's own,
        the table's name is it.
      table: the table's name.
      input_dim: the number of rows, if there is one.
      output_dim: the rows' width.

    Raises:
      ValueError: the servers know no such initializer.
    """
    if isinstance(initializer, str) and initializer in _NAMED:
        kind, a, b = _NAMED[initializer]
        return ops.RowInitializer(kind, a, b, _seed_of(table))
    if isinstance(initializer, str | dict):
        import keras

        initializer = keras.initializers.get(initializer)
    kind, a, b = _describe(initializer, input_dim, output_dim)
    # Not `seed`, which Keras 3 draws where the user gives none.
    seed = getattr(initializer, "_init_seed", getattr(initializer, "seed", None))
    return ops.RowInitializer(kind, a, b, seed if isinstance(seed, int) else _seed_of(table))


def _describe(initializer: Any, input_dim: int | None, width: int) -> tuple[int, float, float]:
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


def _scaled(initializer: Any, rows: int, width: int) -> tuple[int, float, float]:
    """Keras's VarianceScaling, and what is derived from it."""
    fan = {"fan_in": rows, "fan_out": width, "fan_avg": (rows + width) / 2}[initializer.mode]
    variance = initializer.scale / max(1.0, fan)
    if initializer.distribution == "uniform":
        return _Kind.UNIFORM, -math.sqrt(3 * variance), math.sqrt(3 * variance)
    if initializer.distribution == "untruncated_normal":
        return _Kind.NORMAL, 0.0, math.sqrt(variance)
    return _Kind.TRUNCATED_NORMAL, 0.0, math.sqrt(variance) / _TRUNCATED


def _seed_of(table: str) -> int:
    return int.from_bytes(hashlib.blake2b(table.encode(), digest_size=8).digest(), "little")
