"""This process in its job: its task and rank, and the connections it has made.

A process is one task of one job. The module's `current` is the one object that knows which, and
the functions are the public face of it. Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.control.encoding import JsonObject
from tfdist.errors import ClusterConfigError, NotInitializedError
from tfdist.job.encryption import encrypt
from tfdist.job.observers import Observers
from tfdist.job.peer_group import Alone, PeerGroup
from tfdist.job.script_failure import ScriptFailure

if TYPE_CHECKING:
    from tfdist.job.job import Job
    from tfdist.ops import Communicator
    from tfdist.ps.config import PsConfig
    from tfdist.ps.stats.rates import Reading
    from tfdist.ps.worker import LocalPsWorker, PsWorker

_log = logging.getLogger("tfdist")


Joined = TypeVar("Joined", bound=PeerGroup)


class Process:
    """One process: its cluster, its settings and its connections to the job's other tasks.

    `tfdist.init()` and the strategies call `enter`, which connects to no other task. `join`
    connects to the other ranks for all-reduce, `attach` to the parameter servers. At the end of the
    program the process leaves both.
    """

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._settings: Settings | None = None
        self._group: PeerGroup | None = None  # which it has joined
        self._alone = Alone()
        self._ps_worker: PsWorker | LocalPsWorker | None = None
        self._ps_cluster: Cluster | None = None  # with which it has attached
        self._has_server_variables = False
        self._has_warned_that_alone = False
        self._script: ScriptFailure | None = None
        self._observers = Observers()
        # Whether the job was told to end and this process stops training: it leaves the job as if
        # it had done its work, with any exit code.
        self.is_preempted = False
        # Whether the program is ending: nothing of the script can fail any more.
        self.is_at_end = False
        # Returns the queues that this process shows beside the job's, as `TaskMaster.queues` does.
        self.shown_queues: Callable[[], list[JsonObject]] = list
        self._before_leaving: list[Callable[[bool], None]] = []

    def enter(self, cluster: Cluster, settings: Settings | None = None) -> None:
        """Records that this process belongs to the job of `cluster`; the latest call counts.

        Args:
          cluster: the job.
          settings: `None` reads the environment on first use.
        """
        self._cluster, self._settings = cluster, settings

    def record(self, cluster: Cluster) -> None:
        """Starts the flight recorder and the timeline of this process's task, once.

        Args:
          cluster: the job; a local one has no recorder.

        Raises:
          ClusterConfigError: a setting has an unusable value.
        """
        if self._observers.record(cluster, self.settings):
            self._watch_script()

    def serve_metrics(self, cluster: Cluster) -> None:
        """Serves the metrics of this process's task, if `TFDIST_METRICS_PORT` is set; once.

        Args:
          cluster: the job.

        Raises:
          ClusterConfigError: a setting has an unusable value, or other hosts could reach the
            metrics without a secret.
          AddressInUseError: the port is taken.
        """
        self._observers.serve_metrics(cluster, self.settings)
        if self.serves_metrics and self.settings.state_dir is not None:
            self._watch_script()

    @property
    def serves_metrics(self) -> bool:
        """Whether this process serves the metrics of its task."""
        return self._observers.serves_metrics

    @property
    def counts_steps(self) -> bool:
        """Whether strategies count training steps; to be set before steps are traced."""
        return self._observers.counts_steps

    @counts_steps.setter
    def counts_steps(self, value: bool) -> None:
        self._observers.counts_steps = value

    @property
    def is_initialized(self) -> bool:
        """Whether this process belongs to a job."""
        return self._cluster is not None

    @property
    def settings(self) -> Settings:
        """The settings: those given to `enter`, or the environment's.

        Raises:
          ClusterConfigError: a variable has an unusable value.
        """
        if self._settings is None:
            self._settings = Settings.from_environment()
        return self._settings

    def cluster(self, api_name: str) -> Cluster:
        """Returns the cluster of this process's job.

        Args:
          api_name: the calling function, for the message.

        Raises:
          NotInitializedError: this process has neither called `tfdist.init()` nor made a strategy.
        """
        if self._cluster is None:
            raise NotInitializedError(
                f"{api_name}: this process belongs to no job yet: call tfdist.init(), or make a "
                "tfdist.MultiWorkerMirroredStrategy, first"
            )
        return self._cluster

    def rank(self, api_name: str) -> int:
        """Returns this process's rank.

        Args:
          api_name: the calling function, for the message.

        Raises:
          NotInitializedError: as for `cluster`, or this task does not train.
        """
        cluster = self.cluster(api_name)
        if cluster.rank is None:
            raise NotInitializedError(
                f"{api_name}: {cluster.task_name} does not train and has no rank"
            )
        return cluster.rank if self._group is None else self._group.rank

    def size(self, api_name: str) -> int:
        """Returns the number of tasks that train.

        Args:
          api_name: the calling function, for the message.

        Raises:
          NotInitializedError: as for `cluster`.
        """
        cluster = self.cluster(api_name)
        return cluster.world_size if self._group is None else self._group.size

    def addresses(self, api_name: str) -> tuple[str, ...]:
        """Returns the addresses of the tasks that train, by rank; none of a job of one task.

        Args:
          api_name: the calling function, for the message.

        Raises:
          NotInitializedError: as for `cluster`.
        """
        cluster = self.cluster(api_name)
        return cluster.training_addresses if self._group is None else self._group.addresses

    def join(self, cluster: Cluster) -> Job:
        """Connects to the other ranks; later calls return the same job.

        Args:
          cluster: the job, which this process enters, too.

        Raises:
          ClusterConfigError: this process has joined another job.
          Exception: as for `Job`.
        """
        self.refuse_in_elastic_job("data tasks")
        job = self.job
        if job is None:
            from tfdist.job.job import Job  # imports TensorFlow

            job = self._join(cluster, lambda: Job(cluster, self.settings))
        elif job.cluster != cluster:
            raise ClusterConfigError(
                f"this process has joined a job as {job.cluster.task_name} of "
                f"{job.cluster.as_dict()} and cannot join another as {cluster.task_name} of "
                f"{cluster.as_dict()}"
            )
        return job

    def join_elastic(self, cluster: Cluster, make: Callable[[], Joined]) -> Joined:
        """Joins an elastic job; later calls return the same members.

        Args:
          cluster: this process's task, which this process enters, too.
          make: joins the job, and returns its members.

        Raises:
          ClusterConfigError: this process has joined another job.
          Exception: the exception of `make`.
        """
        if self.members is not None and self._cluster == cluster:
            return cast(Joined, self.members)
        if self._group is not None:
            assert self._cluster is not None  # since `join`
            raise ClusterConfigError(
                f"this process has joined a job as {self._cluster.task_name} and cannot join "
                f"another, elastic one as {cluster.task_name}"
            )
        return self._join(cluster, make)

    def _join(self, cluster: Cluster, make: Callable[[], Joined]) -> Joined:
        self._observers.follow_failures()
        encrypt(self.settings, cluster.task_name)
        self._group = group = make()
        self._cluster = cluster
        self._observers.report_late_peers(cluster, self.settings, group)
        self._watch_script()
        return group

    def elastic(self, cluster: Cluster, own: Elastic | None = None) -> Elastic | None:
        """Returns the limits of the job, if this process trains in an elastic one.

        Args:
          cluster: this process's task.
          own: limits that take the place of the settings'.
        """
        limits = self.settings.elastic if own is None else own
        if limits is None or cluster.rank is None:
            return None
        if not cluster.is_local:
            return limits
        if not self._has_warned_that_alone:
            self._has_warned_that_alone = True
            _log.warning(
                "this process trains alone, and no worker can join it: the job is to be elastic "
                "(%s), but TF_CONFIG has no cluster, where workers could find each other",
                "TFDIST_ELASTIC" if own is None else "the strategy's `elastic`",
            )
        return None

    def refuse_in_elastic_job(self, what: str) -> None:
        """Refuses what an elastic job does not have.

        Args:
          what: for the message.

        Raises:
          ClusterConfigError: this process is a member of an elastic job.
        """
        if self.members is not None:
            assert self._cluster is not None  # since `join_elastic`
            raise ClusterConfigError(
                f"{self._cluster.task_name}: expected a job of a fixed number of workers for "
                f"{what}, but this job is elastic (TFDIST_ELASTIC, or the strategy's `elastic`)"
            )

    @property
    def group(self) -> PeerGroup | None:
        """The connections to the other ranks of any job; `None` before this process joins it."""
        return self._group

    @property
    def job(self) -> Job | None:
        """The connections to the other ranks of a job of fixed size; `None` before `join`."""
        group = self._group
        return None if group is None or group.is_elastic else cast("Job", group)

    @property
    def members(self) -> PeerGroup | None:
        """The connections to the other ranks of an elastic job; `None` in any other job."""
        group = self._group
        return group if group is not None and group.is_elastic else None

    def is_alone(self, api_name: str) -> bool:
        """Whether this process trains alone to the end; an elastic job may get members.

        Args:
          api_name: the calling function, for the message.

        Raises:
          NotInitializedError: as for `cluster`.
        """
        return self.cluster(api_name).world_size == 1 and self.members is None

    def communicator(self, api_name: str) -> Communicator:
        """Returns the communicator of all ranks, and first joins the job if necessary.

        Args:
          api_name: the calling function, for messages.

        Raises:
          NotInitializedError: as for `rank`, or parameter servers hold the variables.
          Exception: as for `Job`.
        """
        if self._group is not None:
            return self._group.communicator
        cluster = self.cluster(api_name)
        if cluster.rank is None:
            raise NotInitializedError(
                f"{api_name}: {cluster.task_name} does not train and takes part in no collective"
            )
        if cluster.world_size == 1:
            return self._alone.communicator
        if self._has_server_variables:
            raise NotInitializedError(
                f"{api_name}: the workers of a ParameterServerStrategy are not connected to each "
                "other"
            )
        return self.join(cluster).communicator

    def attach(
        self,
        cluster: Cluster,
        config: PsConfig,
        checkpoint_every: float,
        has_variables: bool = True,
    ) -> PsWorker | LocalPsWorker:
        """Connects to the parameter servers; later calls return the same worker.

        Args:
          cluster: the job. A local one makes a server in this process. In a job without `ps` tasks
            all workers make servers, and call this at the same time.
          config: the configuration that all workers must agree on.
          checkpoint_every: seconds between snapshots.
          has_variables: whether the servers hold the models' variables, or only embedding tables.

        Raises:
          ClusterConfigError: this process has attached as another task, or with another
            configuration.
          Exception: as for `PsWorker`.
        """
        worker = self._ps_worker
        if worker is None:
            from tfdist.ps.worker import LocalPsWorker, PsWorker  # imports TensorFlow

            self._observers.follow_failures()
            encrypt(self.settings, cluster.task_name)
            if cluster.is_local:
                worker = LocalPsWorker(cluster, config)
            elif cluster.ps:
                worker = PsWorker(cluster, config, self.settings, self._leads)
            else:
                worker = self._host(cluster, config)
            self._ps_worker, self._ps_cluster = worker, cluster
            if not cluster.is_local:
                self._observers.report_waits_for_servers(cluster, self.settings, worker.client)
            self._watch_script()
            worker.checkpoint_every(checkpoint_every)
        elif (self._ps_cluster, worker.config) != (cluster, config):
            raise ClusterConfigError(
                f"this process has joined a job as {worker.cluster.task_name} with "
                f"{worker.config} and cannot join another as {cluster.task_name} with "
                f"{config}"
            )
        self._has_server_variables = self._has_server_variables or has_variables
        return worker

    def _host(self, cluster: Cluster, config: PsConfig) -> PsWorker:
        """Makes a server in this process, at the same time as the other workers."""
        from tfdist.job.objects import all_gather_object  # imports TensorFlow
        from tfdist.ps.hosting_worker import HostingPsWorker  # imports TensorFlow

        communicator = self.join(cluster).communicator if cluster.world_size > 1 else None

        def exchange(text: str) -> list[str]:
            if communicator is None:
                return [text]
            label = "the servers of embedding tables"
            return all_gather_object(text, communicator=communicator, label=label)

        return HostingPsWorker(cluster, config, self.settings, communicator, exchange)

    @property
    def _leads(self) -> Callable[[], bool] | None:
        """Whether this process is the leader of an elastic job; `None` in any other job."""
        members = self.members
        return None if members is None else lambda: members.is_leader

    @property
    def ps_worker(self) -> PsWorker | LocalPsWorker | None:
        """The connections to the parameter servers; `None` before `attach`."""
        return self._ps_worker

    @property
    def has_server_variables(self) -> bool:
        """Whether servers hold this process's variables, not only embedding tables."""
        return self._has_server_variables

    def report_stragglers(self) -> None:
        """Logs which tasks were late since the last report, if some were for long."""
        self._observers.report_stragglers()

    def readings(self) -> list[Reading | None]:
        """Returns each parameter server's statistics, see `stats.rates`; none before `attach`."""
        return [] if self._ps_worker is None else self._ps_worker.readings()

    def leave(self) -> None:
        """Disconnects, and forgets the job and the settings."""
        self.disconnect()
        self._observers.close()
        self._cluster = self._settings = None
        self.is_preempted = False
        self._has_server_variables = False

    def disconnect(self) -> None:
        """Leaves the parameter servers and the other ranks, as the end of the program does.

        If the script has failed, the other tasks get the reason. May be called again.
        """
        # Before this task waits for the others to end.
        has_ended = self._script is not None and not self._script.has_failed
        self._observers.note_leaving(has_ended)
        callers, self._before_leaving = self._before_leaving, []
        for call in callers:
            assert self._script is not None  # since `before_leaving`
            call(self._script.has_failed and not self.is_preempted)
        worker, self._ps_worker = self._ps_worker, None
        if worker is not None:
            assert self._script is not None  # since `attach`
            failed = self._script.has_failed and not self.is_preempted
            worker.leave(failed or self._script.exception is not None)
        group, self._group = self._group, None
        if group is not None:
            assert self._script is not None  # since `_join`
            group.leave(self._script.exception)
        if worker is not None:
            worker.end()  # other ranks used what it serves until they left, or learned the reason

    @property
    def has_exited(self) -> bool:
        """Whether the script has called `sys.exit`, since this process has joined its job."""
        return self._script is not None and self._script.has_exited

    def note_failure(self, error: BaseException) -> None:
        """Notes an exception that leaves a call such as `fit`, and may end the script.

        Until the script ends, it may wait for others for a long time.
        """
        self._observers.note_failure(error)

    def _disconnect_at_end(self) -> None:
        self.is_at_end = True
        self.disconnect()

    def before_leaving(self, call: Callable[[bool], None]) -> None:
        """Registers a function that `disconnect` calls first, once.

        Args:
          call: is told whether the script has failed.
        """
        self._before_leaving.append(call)
        self._watch_script()

    def _task_name(self) -> str:
        return "the program" if self._cluster is None else self._cluster.task_name

    def _watch_script(self) -> None:
        if self._script is None:
            self._script = ScriptFailure(self._observers, self._task_name)
            # Called after `disconnect`, which waits for the others and may fail.
            atexit.register(self._observers.close_records)
            atexit.register(self._disconnect_at_end)


current = Process()


def cluster(api_name: str) -> Cluster:
    """Returns the cluster of this process's job; see `Process.cluster`."""
    return current.cluster(api_name)


def communicator(api_name: str) -> Communicator:
    """Returns the communicator of all ranks of the job; see `Process.communicator`."""
    return current.communicator(api_name)


def is_alone(api_name: str) -> bool:
    """Whether this process trains alone to the end; see `Process.is_alone`."""
    return current.is_alone(api_name)


def is_initialized() -> bool:
    """Whether `tfdist.init()` or a strategy has named the job of this process."""
    return current.is_initialized


def rank() -> int:
    """Returns this process's number among the tasks that train, from 0; 0 when it trains alone.

    Raises:
      NotInitializedError: before `tfdist.init()` or a strategy, and in a task that does not train.
    """
    return current.rank("tfdist.rank()")


def size() -> int:
    """Returns the number of tasks that train.

    Raises:
      NotInitializedError: before `tfdist.init()` or a strategy.
    """
    return current.size("tfdist.size()")


def local_rank() -> int:
    """Returns this process's number among the tasks that train on the same host, from 0.

    Two tasks share a host if their addresses in `TF_CONFIG` have the same host part.

    Raises:
      NotInitializedError: as for `rank`.
    """
    api_name = "tfdist.local_rank()"
    own = current.rank(api_name)
    return sum(rank < own for rank in _ranks_on_this_host(api_name))


def local_size() -> int:
    """Returns the number of tasks that train on this host; see `local_rank`.

    Raises:
      NotInitializedError: as for `rank`.
    """
    return len(_ranks_on_this_host("tfdist.local_size()"))


def _ranks_on_this_host(api_name: str) -> list[int]:
    own = current.rank(api_name)
    addresses = current.addresses(api_name)
    if not addresses:
        return [own]
    hosts = [address.rpartition(":")[0] for address in addresses]
    return [rank for rank, host in enumerate(hosts) if host == hosts[own]]
