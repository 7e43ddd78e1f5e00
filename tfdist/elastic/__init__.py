"""Training whose workers may die, leave and join while it runs.

`fit` with a `tfdist.MultiWorkerMirroredStrategy` needs nothing from here. Custom loops, and scripts
without a strategy, keep what they train in a state and wrap the loop with `run`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.elastic.loop import run
    from tfdist.elastic.states import (
        HostsUpdatedInterrupt,
        ObjectState,
        TensorFlowKerasState,
        TensorFlowState,
    )

# Imported on first use, because they import TensorFlow.
_MODULE_OF = {
    "HostsUpdatedInterrupt": "tfdist.elastic.states",
    "ObjectState": "tfdist.elastic.states",
    "TensorFlowKerasState": "tfdist.elastic.states",
    "TensorFlowState": "tfdist.elastic.states",
    "run": "tfdist.elastic.loop",
}

__all__ = [
    "HostsUpdatedInterrupt",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]

# Type checkers take the names from the imports above; with this function they would accept any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'tfdist.elastic' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
