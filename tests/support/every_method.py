"""All methods of all services."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

from tfdist.control.pieces import PIECE
from tfdist.control.service import Method
from tfdist.data.queue import messages as tasks
from tfdist.elastic.protocol import messages as elastic
from tfdist.job import messages as job
from tfdist.observe import clock
from tfdist.preemption import messages as preemption
from tfdist.ps import messages as ps
from tfdist.ps.epochs import messages as epochs
from tfdist.ps.stats import messages as statistics
from tfdist.serving.tables import messages as tables

_MODULES = (clock, job, preemption, ps, statistics, epochs, tasks, elastic, tables)

METHODS: list[Method] = [
    PIECE,
    *(x for module in _MODULES for x in vars(module).values() if isinstance(x, Method)),
]


def made_up(hint: Any, scalar: Callable[[type], Any]) -> Any:
    """Returns a value of a field's type, as a message's dict or bytes have it.

    Args:
      hint: the type.
      scalar: returns an int, float, str, bool or bytes.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return {name: made_up(each, scalar) for name, each in typing.get_type_hints(hint).items()}
    if origin in (list, tuple):
        return [made_up(arguments[0], scalar)]
    if origin is dict:
        return {"name": made_up(arguments[1], scalar)}
    if origin in (typing.Union, types.UnionType):
        return made_up(arguments[0], scalar)
    return scalar(hint)
