"""A task of `tfdist check`: it examines its machine, and measures with the others."""

from __future__ import annotations

import tensorflow as tf

from tfdist.check.machine import look
from tfdist.check.measure import links, speed, speeds
from tfdist.check.report import Report
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.job.objects import all_gather_object


def examine(cluster: Cluster, settings: Settings, checkpoint_dir: str | None) -> Report:
    """Checks the machines of a job; every training task calls it.

    Other tasks, and a process without a cluster, check their own machine alone.

    Args:
      cluster: the job.
      settings: of this process.
      checkpoint_dir: the directory for checkpoints, or `None`.

    Returns:
      The same report on every rank.

    Raises:
      Exception: as for `tfdist.job.job.Job`: tasks are missing, or a port is taken.
    """
    machine = look(cluster, settings, checkpoint_dir)
    with tf.device("CPU:0"):
        if cluster.rank is None or cluster.world_size == 1:
            name = "this machine" if cluster.is_local else cluster.task_name
            own = speed() if machine.library is not None else 0.0
            return Report.of([name], [machine], [own], [], {})
        process.current.enter(cluster, settings)
        communicator = process.current.join(cluster).communicator
        hosts = [address.rpartition(":")[0] for address in cluster.training_addresses]
        machines = all_gather_object(machine, communicator=communicator)
        names = [cluster.name_of_rank(rank) for rank in range(communicator.size)]
        of_ranks = speeds(communicator, hosts)
        pairs, clocks = links(communicator, hosts)
    return Report.of(names, machines, of_ranks, pairs, clocks)
