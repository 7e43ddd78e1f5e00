"""How ops of a client name variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def attributes_of(client: int, variables: Sequence[Any]) -> dict[str, object]:
    """Returns the arguments of an op on variables.

    Args:
      client: the client's handle.
      variables: have a `handle` and a parameter id, `parameter`.
    """
    return {
        "variables": [variable.handle for variable in variables],
        "client": client,
        "parameters": [variable.parameter for variable in variables],
    }
