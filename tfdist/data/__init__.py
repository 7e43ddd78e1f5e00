"""Training data: taken in tasks, prepared on data workers, and where a job stands in it.

| File | Holds |
|---|---|
| `sources.py` | `from_ranges`, `from_arrays`, `from_files`: data that workers take in tasks |
| `files.py`, `parquet_rows.py` | the list of files, and the places of tasks in them |
| `pipeline.py` | counts the records of each batch, at the end of the user's pipeline |
| `stream.py` | which records are read, and which of them are trained |
| `feed.py` | this worker's part in the queues: takes tasks, commits, renews leases |
| `checkpoints.py` | the queues' state in a checkpoint |
| `sparse_rounds.py` | rounds of sparse updates without conflicts |
| `steps.py` | `step` and `commit`, for loops other than `fit` |
| `service.py`, `server.py` | `distribute`: pipelines on data workers |
| `cut/` | the cut of global batches before the maps |
| `position.py`, `openings.py`, `order.py`, `iterators.py` | exact resume of other data |
| `background_release.py` | iterators end in threads of their own |
| `strategies.py` | the attributes of strategies that the input uses |
| `draws.py`, `same_draws.py`, `seeds.py` | the orders that shuffles draw, and the seeds |
| `shares.py`, `rows.py` | the rows of a worker, and the rows of a dataset |
| `queue/` | the queues themselves, and their master |

`queue/` does not import TensorFlow. See
docs/guides/data.md, docs/guides/data_service.md and docs/guides/resume.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.data.checkpoints import TaskState
    from tfdist.data.cut.plan import per_row
    from tfdist.data.pipeline import tracked
    from tfdist.data.service import distribute
    from tfdist.data.sources import from_arrays, from_files, from_ranges
    from tfdist.data.sparse_rounds import Round, cyclades
    from tfdist.data.steps import commit, step

# Imported on first use, because they import TensorFlow, which `queue` does not.
_MODULE_OF = {
    "Round": "tfdist.data.sparse_rounds",
    "TaskState": "tfdist.data.checkpoints",
    "commit": "tfdist.data.steps",
    "cyclades": "tfdist.data.sparse_rounds",
    "distribute": "tfdist.data.service",
    "from_arrays": "tfdist.data.sources",
    "from_files": "tfdist.data.sources",
    "from_ranges": "tfdist.data.sources",
    "per_row": "tfdist.data.cut.plan",
    "step": "tfdist.data.steps",
    "tracked": "tfdist.data.pipeline",
}

__all__ = [
    "Round",
    "TaskState",
    "commit",
    "cyclades",
    "distribute",
    "from_arrays",
    "from_files",
    "from_ranges",
    "per_row",
    "step",
    "tracked",
]

# Type checkers take the names from the imports above; with this function they would accept any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'tfdist.data' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
