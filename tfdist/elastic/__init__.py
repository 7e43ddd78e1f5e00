"""Training whose workers may die, leave and join while it runs.

`fit` with a `tfdist.MultiWorkerMirroredStrategy` needs nothing from here. Custom loops, and scripts
without a strategy, keep what they train in a state and wrap the loop with `run`.

| File | Holds |
|---|---|
| `job.py`, `phase.py` | `ElasticJob`: units of work of all members, and the states of a process |
| `membership.py`, `founding.py`, `joining.py` | who the members are, at the beginning and later |
| `agreement.py`, `connection.py` | the two rounds of a generation |
| `peers.py`, `confirming.py` | the other processes, and the answers of unknown callers |
| `protocol/` | the state of generations, and its service |
| `values.py` | the values that a newcomer receives, and that members send each other |
| `atomic_step.py` | a traced step that is done by all members, or leaves no trace |
| `calls.py`, `records.py`, `record_exchange.py` | ended calls of a script, for newcomers |
| `contents.py`, `data_values.py`, `plain_values.py` | comparisons of members, and values as bytes |
| `owed.py` | calls of rank 0 that its successor makes again |
| `notice.py`, `tombstone.py` | a worker that is told to leave; a job that has ended |
| `start.py`, `states.py`, `loop.py` | jobs without a strategy: `tfdist.elastic.run` |
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
