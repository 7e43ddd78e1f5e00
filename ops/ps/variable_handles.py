"""How ops of a client name variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf


class ParameterHandle(Protocol):
    """A variable whose value is on the servers: `ServerVariable`."""

    @property
    def handle(self) -> tf.Tensor:
        """Its resource."""

    @property
    def parameter(self) -> int:
        """The parameter's id."""


class TableHandle(Protocol):
    """A variable that stands for a table on the servers: `TableVariable`."""

    @property
    def handle(self) -> tf.Tensor:
        """Its resource."""

    @property
    def table(self) -> int:
        """The table's id."""

    @property
    def width(self) -> int:
        """Elements of a row."""


def attributes_of(client: int, variables: Sequence[ParameterHandle]) -> dict[str, object]:
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
