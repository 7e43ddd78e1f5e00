"""tfdist's ops: collectives, local reductions, and both sides of the parameter servers."""

from collections.abc import Callable

from tfdist import _providers
from tfdist.ops.autograph import exclude_tfdist
from tfdist.ops.collectives import gradients as _gradients  # noqa: F401, registers them
from tfdist.ops.collectives.communicator import CommunicationStats, Communicator
from tfdist.ops.collectives.compressed import (
    cast16_all_reduce,
    multiply_transposed,
    one_bit_encode,
    one_bit_sum,
    orthonormalize,
    scatter_add_top_k,
    top_k,
)
from tfdist.ops.collectives.fused import fused_all_reduce
from tfdist.ops.collectives.gathers import all_gather, all_to_all, gather, reduce_scatter, scatter
from tfdist.ops.collectives.reductions import all_reduce, barrier, broadcast, join, reduce
from tfdist.ops.local.copy_to_devices import copy_to_devices
from tfdist.ops.local.local_reduce import local_reduce
from tfdist.ops.local.sum_rows import sum_rows
from tfdist.ops.ps.client import ParameterClient, ParameterClientStats
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.ps.prefetched import before_asking, prefetched
from tfdist.ops.ps.saved_rows import SavedRows, import_rows, scan_rows
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.server_records import ServerEvent, ServerStats, TableStats, TraceEvent
from tfdist.ops.ps.snapshot import SavedTable, ServerSnapshot
from tfdist.ops.ps.table_config import (
    EvictionPolicy,
    InitializerKind,
    RowInitializer,
    RowRule,
    TableConfig,
)
from tfdist.ops.ps.tables import EditKind
from tfdist.ops.trace import events as _events  # noqa: F401, registers its structure

exclude_tfdist()

# Public here, but defined by a package that is built on this one.
_PROVIDED = ("embedding_lookup", "prefetch_rows", "safe_embedding_lookup_sparse")

__all__ = [
    "CommunicationStats",
    "Communicator",
    "EditKind",
    "EvictionPolicy",
    "InitializerKind",
    "OptimizerConfig",
    "OptimizerKind",
    "ParameterClient",
    "ParameterClientStats",
    "ParameterServer",
    "RowInitializer",
    "RowRule",
    "SavedRows",
    "SavedTable",
    "ServerEvent",
    "ServerSnapshot",
    "ServerStats",
    "TableConfig",
    "TableStats",
    "TraceEvent",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "before_asking",
    "broadcast",
    "cast16_all_reduce",
    "copy_to_devices",
    "embedding_lookup",
    "fused_all_reduce",
    "gather",
    "import_rows",
    "join",
    "local_reduce",
    "multiply_transposed",
    "one_bit_encode",
    "one_bit_sum",
    "orthonormalize",
    "prefetch_rows",
    "prefetched",
    "reduce",
    "reduce_scatter",
    "safe_embedding_lookup_sparse",
    "scan_rows",
    "scatter",
    "scatter_add_top_k",
    "sum_rows",
    "top_k",
]


def __getattr__(name: str) -> Callable:
    if name in _PROVIDED:
        return _providers.provider(name)
    raise AttributeError(f"module 'tfdist.ops' has no attribute {name!r}")
