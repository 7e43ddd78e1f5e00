"""What files of tables have of each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.errors import CheckpointError

AT_ONCE = 1 << 16  # rows
COLUMNS = {  # dtype, and whether a row has several
    "ids": (np.int64, False),
    "values": (np.float32, True),
    "slots": (np.float32, True),
    "used": (np.uint32, False),
    "counts": (np.uint32, False),
}
WITHOUT_SLOTS = ("ids", "values")


def no_rows(width: int) -> dict[str, np.ndarray]:
    """The columns of a table without rows, nor slots."""
    widths = {"values": width, "slots": 0}
    return {
        name: np.zeros([0, widths[name]] if several else [0], dtype)
        for name, (dtype, several) in COLUMNS.items()
    }


def check_names(names: Sequence[str], path: str) -> None:
    """Raises CheckpointError unless a file has all that it has to have."""
    extra = [name for name in names if name not in WITHOUT_SLOTS]
    wanted = [*WITHOUT_SLOTS, *(["used", "counts"] if extra else [])]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise CheckpointError(
            f"{path}: expected {', '.join(missing)}, received {', '.join(names) or 'none of it'}"
        )
