"""What the repairs ask about strategies and workers."""

from __future__ import annotations

from tfdist import ops
from tfdist.strategies.base import StrategyBase


def is_ours(strategy) -> bool:
    """Whether `strategy` is one of tfdist's."""
    return isinstance(strategy, StrategyBase)


def has_peers(strategy) -> bool:
    """Whether `strategy` is one of tfdist's, with more than one replica."""
    return is_ours(strategy) and strategy.num_replicas_in_sync > 1


def communicator_of(model) -> ops.Communicator | None:
    """The workers that train `model`; `None` if there is one."""
    return getattr(model.distribute_strategy, "communicator", None)


def rank_of(model) -> int:
    """This process's rank among them."""
    communicator = communicator_of(model)
    return 0 if communicator is None else communicator.rank
