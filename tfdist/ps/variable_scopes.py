"""Declarations about a new variable, for a strategy.

`tf.distribute` tells a strategy a variable's name, shape and dtype, but not what it is for. Code
that knows says so in a scope; the strategy asks when the variable is made.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
from collections.abc import Iterator


class Role(enum.Enum):
    """The purpose of a variable."""

    UNSHARED = "unshared"  # each worker's own
    TABLE = "table"  # stands for an embedding table
    CONSTANT = "constant"  # has the same initial value in all workers
    PART = "part"  # as CONSTANT; a strategy with `Sharding` gives each worker a part of it


_path: contextvars.ContextVar[str | None] = contextvars.ContextVar("path", default=None)
_role: contextvars.ContextVar[Role | None] = contextvars.ContextVar("role", default=None)


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Gives the variables that are made within a full name, in the place of their own."""
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


@contextlib.contextmanager
def made_as(role: Role | None) -> Iterator[None]:
    """Gives the variables that are made within a role; `None`: the strategy decides."""
    token = _role.set(role)
    try:
        yield
    finally:
        _role.reset(token)


def current_path() -> str | None:
    """The name of the innermost `named`; `None` outside of one."""
    return _path.get()


def current_role() -> Role | None:
    """The role of the innermost `made_as`; `None` outside of one."""
    return _role.get()
