"""Public ops: the collectives, and lookups of embedding tables.

Code of tfdist imports every other op from the module that defines it.
"""

from collections.abc import Callable

from tfdist import _providers
from tfdist.ops.autograph import exclude_tfdist
from tfdist.ops.collectives import gradients as _gradients  # noqa: F401, registers them
from tfdist.ops.collectives.communicator import CommunicationStats, Communicator
from tfdist.ops.collectives.fused import fused_all_reduce
from tfdist.ops.collectives.gathers import all_gather, all_to_all, gather, reduce_scatter, scatter
from tfdist.ops.collectives.reductions import all_reduce, barrier, broadcast, join, reduce

# They register their structures, which `library.c_structure` asks for.
from tfdist.ops.ps import client as _client  # noqa: F401
from tfdist.ops.ps import saved_rows as _saved_rows  # noqa: F401
from tfdist.ops.ps import server as _server  # noqa: F401
from tfdist.ops.ps import snapshot as _snapshot  # noqa: F401
from tfdist.ops.trace import events as _events  # noqa: F401

exclude_tfdist()

# Public here, but defined by a package that is built on this one.
_PROVIDED = ("embedding_lookup", "prefetch_rows", "safe_embedding_lookup_sparse")

__all__ = [
    "CommunicationStats",
    "Communicator",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "embedding_lookup",
    "fused_all_reduce",
    "gather",
    "join",
    "prefetch_rows",
    "reduce",
    "reduce_scatter",
    "safe_embedding_lookup_sparse",
    "scatter",
]


def __getattr__(name: str) -> Callable:
    if name in _PROVIDED:
        return _providers.provider(name)
    raise AttributeError(f"module 'tfdist.ops' has no attribute {name!r}")
