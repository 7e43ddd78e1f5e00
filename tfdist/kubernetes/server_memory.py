"""The memory of a parameter server's pod, and the part of it that the server may hold.

A server that reaches its own budget, `TFDIST_PS_MEMORY`, refuses a request, and the worker gets an
error that says so. A pod that reaches its limit is killed, and loses all changes since the last
snapshot. So the budget is smaller than the limit, by 768Mi or an eighth, whichever is more:

    limit      1Gi      2Gi      4Gi      8Gi    64Gi
    budget   256Mi   1280Mi   3328Mi      7Gi    56Gi

The reserve holds what the budget does not count: Python and TensorFlow, 265 MB after the import of
TensorFlow 2.21, connections, and rows that change while a snapshot is written.
"""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}
_MIB = 1 << 20
_LEAST_RESERVE = 768 * _MIB
LEAST = 1024 * _MIB


def bytes_of(quantity: str) -> int:
    """Returns the bytes in a quantity of Kubernetes, such as "8Gi"."""
    found = re.fullmatch(r"([0-9]+)([A-Za-z]*)", quantity)
    assert found is not None, quantity
    return int(found[1]) * _UNITS[found[2]]


def budget(limit: str) -> str:
    """Returns `TFDIST_PS_MEMORY` for a pod's limit of at least `LEAST` bytes.

    Example:
      >>> budget("4Gi")
      '3328M'
    """
    total = bytes_of(limit)
    # TFDIST_PS_MEMORY has units of 1024.
    return f"{(total - max(_LEAST_RESERVE, total // 8)) // _MIB}M"
