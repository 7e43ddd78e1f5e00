"""Which job this process trains in, and which of its ranks it is.

`tfdist.init()` and the strategies say so; nothing here imports TensorFlow or connects to anybody.
"""

from __future__ import annotations

from tfdist.config.cluster import Cluster
from tfdist.errors import NotInitializedError

_entered: list[Cluster] = []  # none, or one


def enter(cluster: Cluster) -> None:
    """Notes that this process belongs to `cluster`'s job; the latest call counts."""
    _entered[:] = [cluster]


def leave() -> None:
    """Forgets the job."""
    _entered.clear()


def cluster(asked: str) -> Cluster:
    """Returns the cluster of this process's job.

    Args:
      asked: what needs it, for the message.

    Raises:
      NotInitializedError: this process has neither called `tfdist.init()` nor made a strategy.
    """
    if not _entered:
        raise NotInitializedError(
            f"{asked}: this process belongs to no job yet: call tfdist.init(), or make a "
            "tfdist.MultiWorkerMirroredStrategy, first"
        )
    return _entered[0]


def is_initialized() -> bool:
    """Whether `tfdist.init()` or a strategy has named the job of this process."""
    return bool(_entered)


def rank() -> int:
    """Returns this process's number among the tasks that train, from 0; 0 when it trains alone.

    Raises:
      NotInitializedError: before `tfdist.init()` or a strategy, and in a task that does not train.
    """
    return _rank("tfdist.rank()")


def size() -> int:
    """Returns the number of tasks that train.

    Raises:
      NotInitializedError: before `tfdist.init()` or a strategy.
    """
    return cluster("tfdist.size()").world_size


def local_rank() -> int:
    """Returns this process's number among the tasks that train on the same host, from 0.

    Two tasks share a host if their addresses in `TF_CONFIG` have the same host part.

    Raises:
      NotInitializedError: as `rank`.
    """
    own = _rank("tfdist.local_rank()")
    return sum(rank < own for rank in _on_this_host(own))


def local_size() -> int:
    """Returns the number of tasks that train on this host; see `local_rank`.

    Raises:
      NotInitializedError: as `rank`.
    """
    return len(_on_this_host(_rank("tfdist.local_size()")))


def _rank(asked: str) -> int:
    known = cluster(asked)
    if known.rank is None:
        raise NotInitializedError(f"{asked}: {known.task_name} does not train and has no rank")
    return known.rank


def _on_this_host(own: int) -> list[int]:
    addresses = _entered[0].training_addresses
    if not addresses:
        return [own]
    hosts = [address.rpartition(":")[0] for address in addresses]
    return [rank for rank, host in enumerate(hosts) if host == hosts[own]]
