"""What the repairs ask about strategies and workers."""

from __future__ import annotations

import tensorflow as tf

from tfdist import ops
from tfdist.strategies.base import StrategyBase


def is_ours(strategy) -> bool:
    """Whether `strategy` is one of tfdist's."""
    return isinstance(strategy, StrategyBase)


def has_peers(strategy) -> bool:
    """Whether `strategy` is one of tfdist's, with more than one replica."""
    return is_ours(strategy) and strategy.num_replicas_in_sync > 1


def replica_of_ours() -> tf.distribute.ReplicaContext | None:
    """The replica that is being run, if its strategy is one of tfdist's."""
    replica = tf.distribute.get_replica_context()
    return replica if replica is not None and is_ours(replica.strategy) else None


def replica_with_peers() -> tf.distribute.ReplicaContext | None:
    """As `replica_of_ours`, where there is more than one."""
    replica = replica_of_ours()
    return replica if replica is not None and has_peers(replica.strategy) else None


def communicator_of(model) -> ops.Communicator | None:
    """The workers that train `model`; `None` if there is one."""
    return getattr(model.distribute_strategy, "communicator", None)


def rank_of(model) -> int:
    """This process's rank among them."""
    communicator = communicator_of(model)
    return 0 if communicator is None else communicator.rank
