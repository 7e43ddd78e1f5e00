"""Questions of the repairs and hooks about strategies, variables and workers.

`tfdist.strategies` imports this package, so nothing here imports it. Its classes answer by their
attributes: `StrategyBase.is_of_tfdist`, `ServerVariable.is_on_servers`, `PartVariable.is_part` and
`TableVariable.stands_for_table`. The class is asked, not the object: a distributed variable passes
an unknown attribute on to a value that it may have to reduce first.
"""

from __future__ import annotations

import logging
from typing import TypeGuard

import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasModel, KerasVariable
from tfdist.atomic_files import Term
from tfdist.data.strategies import workers_of
from tfdist.elastic.job import ElasticJob
from tfdist.keras.strategies import LocalTraining, ServersStrategy, local_training_of
from tfdist.ops.collectives.world import world

_log = logging.getLogger("tfdist")


def is_ours(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` is one of tfdist's."""
    return getattr(type(strategy), "is_of_tfdist", False)


def trains_on_servers(strategy: tf.distribute.Strategy) -> TypeGuard[ServersStrategy]:
    """Whether `strategy` is tfdist's ParameterServerStrategy."""
    return is_ours(strategy) and hasattr(strategy.extended, "parameters")


def has_peers(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` is one of tfdist's, with more than one replica, or may get more."""
    # Not the public property: a loss that asks for it divides by it.
    return is_ours(strategy) and (
        strategy.extended._num_replicas_in_sync > 1 or elastic_job_of(strategy) is not None
    )


def has_copies(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` has peers whose state is their own until the strategy reduces it.

    With parameter servers state is shared, or each worker's own for good.
    """
    return has_peers(strategy) and not trains_on_servers(strategy)


def replica_of_ours() -> tf.distribute.ReplicaContext | None:
    """The current replica, if its strategy is one of tfdist's."""
    replica = tf.distribute.get_replica_context()
    return replica if replica is not None and is_ours(replica.strategy) else None


def replica_with_peers() -> tf.distribute.ReplicaContext | None:
    """The current replica, if its strategy `has_peers`."""
    replica = replica_of_ours()
    return replica if replica is not None and has_peers(replica.strategy) else None


def replica_with_copies() -> tf.distribute.ReplicaContext | None:
    """The current replica, if its strategy `has_copies`."""
    replica = replica_of_ours()
    return replica if replica is not None and has_copies(replica.strategy) else None


def replica_on_servers() -> tf.distribute.ReplicaContext | None:
    """The current replica, if its strategy `trains_on_servers`."""
    replica = replica_of_ours()
    return replica if replica is not None and trains_on_servers(replica.strategy) else None


def elastic_job_of(strategy: tf.distribute.Strategy) -> ElasticJob | None:
    """The members of an elastic job; `None` for all other strategies."""
    return getattr(strategy, "elastic_job", None)


def term_of(model: KerasModel) -> Term | None:
    """The generation in which this process writes a model's files; `None` if no job is elastic."""
    job = elastic_job_of(model.distribute_strategy)
    return None if job is None else Term(job.id, job.generation)


def local_updates_of(strategy: tf.distribute.Strategy) -> LocalTraining | None:
    """The object that trains the workers of a LocalUpdateStrategy; `None` for others."""
    return local_training_of(strategy.extended) if is_ours(strategy) else None


def local_updates() -> LocalTraining | None:
    """The object that trains the current replica alone; `None` if it does not train alone."""
    replica = replica_of_ours()
    return None if replica is None else local_updates_of(replica.strategy)


def living_replicas() -> tf.Tensor | None:
    """The number of replicas at each execution, int32[]; `None` where it is fixed.

    It is not fixed in a replica of an elastic job, unless it trains alone.
    """
    replica = replica_of_ours()
    job = None if replica is None else elastic_job_of(replica.strategy)
    if replica is None or job is None or local_updates_of(replica.strategy) is not None:
        return None
    _, size = world(job.communicator)
    return size * len(replica.strategy.extended.worker_devices)


def communicator_of(model: KerasModel) -> ops.Communicator | None:
    """The workers that train `model` by collectives; `None` if there is one worker.

    `None` in an elastic job, too: outside of its steps a worker needs no other one.
    """
    strategy = model.distribute_strategy
    if elastic_job_of(strategy) is not None:
        return None
    return workers_of(strategy)


def rank_of(model: KerasModel) -> int:
    """This process's rank among the workers that train `model`."""
    job = elastic_job_of(model.distribute_strategy)
    if job is not None:
        return job.rank
    if trains_on_servers(model.distribute_strategy):
        return model.distribute_strategy.extended.rank
    communicator = communicator_of(model)
    return 0 if communicator is None else communicator.rank


def is_on_servers(variable: KerasVariable) -> bool:
    """Whether parameter servers hold the value of a `tf.Variable`."""
    return getattr(type(variable), "is_on_servers", False)


def is_table(variable: KerasVariable) -> bool:
    """Whether a `tf.Variable` stands for an embedding table."""
    return getattr(type(variable), "stands_for_table", False)


def is_part(variable: KerasVariable) -> bool:
    """Whether a `tf.Variable` is a worker's part of a vector."""
    return getattr(type(variable), "is_part", False)


def decide_where_it_runs(name: str, wanted: str, obstacle: str | None) -> bool:
    """Decides whether the servers run an optimizer, and logs the decision.

    Args:
      name: the optimizer's name.
      wanted: the strategy's `ps_optimizer`.
      obstacle: why the servers cannot run it; `None` if they can.

    Raises:
      ValueError: the user wants the servers to run it, and they cannot; says why.
    """
    if wanted == "server" and obstacle:
        raise ValueError(
            f"optimizer {name!r}: expected an optimizer that the servers can run, as "
            f"ps_optimizer='server' asks for, but {obstacle}"
        )
    on_servers = wanted != "worker" and not obstacle
    where = "on the servers" if on_servers else f"on the workers ({obstacle or 'as asked for'})"
    _log.info("optimizer %r runs %s", name, where)
    return on_servers
