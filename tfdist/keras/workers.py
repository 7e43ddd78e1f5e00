"""What the repairs ask about strategies and workers."""

from __future__ import annotations

import logging

import tensorflow as tf

from tfdist import ops
from tfdist.strategies._base import StrategyBase

_log = logging.getLogger("tfdist")


def is_ours(strategy) -> bool:
    """Whether `strategy` is one of tfdist's."""
    return isinstance(strategy, StrategyBase)


def trains_on_servers(strategy) -> bool:
    """Whether `strategy` is tfdist's ParameterServerStrategy."""
    return is_ours(strategy) and hasattr(strategy.extended, "parameters")


def has_peers(strategy) -> bool:
    """Whether `strategy` is one of tfdist's, with more than one replica."""
    return is_ours(strategy) and strategy.num_replicas_in_sync > 1


def has_copies(strategy) -> bool:
    """As `has_peers`, where a replica's state is its own until the strategy reduces it.

    With parameter servers it is each worker's own for good, or shared.
    """
    return has_peers(strategy) and not trains_on_servers(strategy)


def replica_of_ours() -> tf.distribute.ReplicaContext | None:
    """The replica that is being run, if its strategy is one of tfdist's."""
    replica = tf.distribute.get_replica_context()
    return replica if replica is not None and is_ours(replica.strategy) else None


def replica_with_peers() -> tf.distribute.ReplicaContext | None:
    """The replica that is being run, if it `has_peers`."""
    replica = replica_of_ours()
    return replica if replica is not None and has_peers(replica.strategy) else None


def replica_with_copies() -> tf.distribute.ReplicaContext | None:
    """The replica that is being run, if it `has_copies`."""
    replica = replica_of_ours()
    return replica if replica is not None and has_copies(replica.strategy) else None


def replica_on_servers() -> tf.distribute.ReplicaContext | None:
    """The replica that is being run, if it `trains_on_servers`."""
    replica = replica_of_ours()
    return replica if replica is not None and trains_on_servers(replica.strategy) else None


def communicator_of(model) -> ops.Communicator | None:
    """The workers that train `model` by collectives; `None` if there is one."""
    return getattr(model.distribute_strategy, "communicator", None)


def count_of(model) -> int:
    """The number of workers that train `model`."""
    if trains_on_servers(model.distribute_strategy):
        return model.distribute_strategy.extended.config.workers
    communicator = communicator_of(model)
    return 1 if communicator is None else communicator.size


def rank_of(model) -> int:
    """This process's rank among the workers that train `model`."""
    if trains_on_servers(model.distribute_strategy):
        return model.distribute_strategy.extended.rank
    communicator = communicator_of(model)
    return 0 if communicator is None else communicator.rank


def decide_where_it_runs(name: str, wanted: str, obstacle: str | None) -> bool:
    """Whether the servers are to run an optimizer; tells the log.

    Args:
      name: the optimizer's.
      wanted: the strategy's `ps_optimizer`.
      obstacle: what keeps the servers from it, if something does.

    Raises:
      ValueError: the user wants the servers to, and they cannot; says why.
    """
    if wanted == "server" and obstacle:
        raise ValueError(
            f"optimizer {name!r}: expected one that the servers can run, as "
            f"ps_optimizer='server' asks for, but {obstacle}"
        )
    on_servers = wanted != "worker" and not obstacle
    place = "on the servers" if on_servers else f"on the workers ({obstacle or 'as asked for'})"
    _log.info("optimizer %r runs %s", name, place)
    return on_servers
