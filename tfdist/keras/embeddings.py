"""The functions of embedding tables that the hooks need; `tfdist.embedding` provides them.

That package imports this one. A model has tables only if it has been imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """The functions of `tfdist.embedding`.

    Attributes:
      layer: the base class of embedding layers.
      tables_of: returns the tables that a model's layers have used.
      export: writes a model with tables as a SavedModel; arguments of `keras.Model.export` without
        the format.
      prefetch_rows: returns a dataset that looks rows up ahead; see `tfdist.ops.prefetch_rows`.
    """

    layer: type[Any]
    tables_of: Callable
    export: Callable
    prefetch_rows: Callable


_provided: list[Embeddings] = []  # none, or one


def provide(embeddings: Embeddings) -> None:
    """Tells the hooks about embedding tables; the latest call counts."""
    _provided[:] = [embeddings]


def provided() -> Embeddings | None:
    """The provided functions; `None` where no model can have a table."""
    return _provided[0] if _provided else None
