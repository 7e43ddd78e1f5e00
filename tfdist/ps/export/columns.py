"""The columns of files of tables."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tfdist.errors import CheckpointError

CHUNK_ROWS = 1 << 16
COLUMNS = {  # dtype, and whether a row has several elements
    "ids": (np.int64, False),
    "values": (np.float32, True),
    "slots": (np.float32, True),
    "used": (np.uint32, False),
    "counts": (np.uint32, False),
}
# The columns in a saved model, one tensor each.
SAVED = {**{name: dtype for name, (dtype, _) in COLUMNS.items()}, "slot_names": np.uint8}
WITHOUT_SLOTS = ("ids", "values")
# A file's description of its slots: the number of floats of each by name, as JSON.
SLOT_NAMES = "slot_names"


def parse_slot_names(text: str, path: str) -> dict[str, int]:
    """Parses a file's description of its slots.

    Raises:
      CheckpointError: it is invalid.
    """
    try:
        names = json.loads(text)
        if isinstance(names, dict) and all(isinstance(n, int) for n in names.values()):
            return names
    except (ValueError, RecursionError):
        pass
    raise CheckpointError(
        f"{path} is damaged: expected {SLOT_NAMES} to be counts by name, received {text[:100]!r}"
    )


def no_rows(width: int) -> dict[str, np.ndarray]:
    """Returns the saved columns of a table without rows."""
    shapes = {"values": [0, width], "slots": [0, 0]}
    return {name: np.zeros(shapes.get(name, [0]), dtype) for name, dtype in SAVED.items()}


def check_names(names: Sequence[str], path: str) -> None:
    """Raises CheckpointError unless a file has all required columns."""
    extra = [name for name in names if name not in WITHOUT_SLOTS]
    required = [*WITHOUT_SLOTS, *(["used", "counts"] if extra else [])]
    missing = [name for name in required if name not in names]
    if missing:
        raise CheckpointError(
            f"{path}: expected {', '.join(missing)}, received {', '.join(names) or 'none of it'}"
        )
