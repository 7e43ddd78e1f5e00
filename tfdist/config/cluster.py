"""The tasks of a job, and this process's own task.

`Cluster` is the frozen form of `TF_CONFIG`, of a launcher's variables (`environments`), or of a
`tf.distribute` resolver. This module does not
import TensorFlow.

A *rank* numbers the tasks that train. The chief is rank 0 if there is one, and the workers follow;
without a chief, worker 0 is rank 0. Parameter servers, evaluators and data tasks have no rank.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tfdist import _providers
from tfdist.config import environments, validation
from tfdist.config.environments.launched import DetectedCluster
from tfdist.config.validation import ROLES, show
from tfdist.errors import ClusterConfigError

if TYPE_CHECKING:
    import tensorflow as tf

_log = logging.getLogger("tfdist")
# The roles of TensorFlow's data service.
DATA_ROLES = ("data_dispatcher", "data_worker")
# The field of `Cluster` with the addresses of a role.
_FIELD_OF_ROLE = dict(
    zip(
        ROLES,
        ("chief", "workers", "ps", "evaluators", "data_dispatcher", "data_workers"),
        strict=True,
    )
)
_TF_CONFIG_EXAMPLE = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a job, and this process's own task.

    Args:
      chief: zero or one "host:port".
      workers: "host:port" of each worker, by index.
      ps: "host:port" of each parameter server, by index.
      evaluators: "host:port" of each evaluator; usually empty, since evaluators need no address.
      task_type: the type of this task: "chief", "worker", "ps", "evaluator", "data_dispatcher" or
        "data_worker".
      task_index: its index among the tasks of that type.
      data_dispatcher: zero or one "host:port", of the dispatcher of TensorFlow's data service.
      data_workers: "host:port" of each worker of TensorFlow's data service, by index.

    Raises:
      ClusterConfigError: the values contradict each other.

    Example:
      >>> cluster = Cluster(workers=("a:2222", "b:2222"), task_type="worker", task_index=1)
      >>> cluster.rank, cluster.world_size, cluster.address
      (1, 2, 'b:2222')
    """

    chief: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    task_type: str = "worker"
    task_index: int = 0
    data_dispatcher: tuple[str, ...] = ()
    data_workers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in _FIELD_OF_ROLE.values():
            object.__setattr__(self, field, tuple(getattr(self, field)))
        validation.check_tasks(self.as_dict(), "Cluster")
        validation.role_name(self.task_type, "Cluster", "task_type")
        if not self.is_local:
            validation.check_task(self.as_dict(), self.task_type, self.task_index, "Cluster")
        elif (self.task_type, self.task_index) != ("worker", 0):
            raise ClusterConfigError(
                f"Cluster: without addresses the only task is worker 0, received {self.task_name}"
            )

    @classmethod
    def local(cls) -> Cluster:
        """Returns the cluster of a process that trains alone."""
        return cls()

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, needs_others: bool = True
    ) -> Cluster:
        """Returns the cluster that `TF_CONFIG` or the launcher of this process describes.

        The variables of Slurm, MPI launchers, Kubernetes and torchrun are read; `environments` has
        their order. If they do not name the hosts of the other processes, this call waits until
        all processes have told theirs to rank 0; it does so once in a process.

        Args:
          environ: variables by name; this process's environment if None.
          needs_others: whether this process must reach the others. If not, this call waits for
            none; ranks whose hosts no variable names get addresses of this host.

        Raises:
          ClusterConfigError: a variable is missing or unusable, or two contradict each other.
          RendezvousTimeoutError: processes have not told their hosts in time.
          TfdistError: rank 0 could not be asked.
        """
        environ = os.environ if environ is None else environ
        detected = environments.detect(environ, needs_others=needs_others)
        _log_once(
            f"the cluster comes from {detected.source}: {'; '.join(detected.notes)}", logging.INFO
        )
        for warning in detected.warnings:
            _log_once(f"{warning}; this process trains alone", logging.WARNING)
        exchange = detected.exchange
        if exchange is not None:
            addresses = _providers.provider("exchange_addresses")(exchange, environ)
            tasks = environments.tasks_of(environ, addresses, exchange.index, exchange.servers)
            detected = dataclasses.replace(detected, tasks=tasks, exchange=None)
        return cls.from_detected(detected)

    @classmethod
    def from_detected(cls, detected: DetectedCluster) -> Cluster:
        """Returns the cluster that an environment describes.

        Args:
          detected: without an exchange: all addresses are known.

        Raises:
          ClusterConfigError: it describes no cluster.
        """
        assert detected.exchange is None
        if detected.tf_config is not None:
            return cls.from_tf_config(detected.tf_config)
        if detected.tasks is None:
            return cls.local()
        tasks = detected.tasks
        return cls.from_tasks(tasks.addresses, tasks.role, tasks.index, detected.source)

    @classmethod
    def from_tf_config(cls, text: str | None) -> Cluster:
        """Returns the cluster that the JSON `text` describes; None, "" and "{}" mean a local one.

        Raises:
          ClusterConfigError: the text is invalid; names the expected and the received value.
        """
        if text is None or not text.strip():
            return cls.local()
        try:
            config = json.loads(text)
        # RecursionError: thousands of nested brackets. ValueError: also thousands of digits.
        except (ValueError, RecursionError) as error:
            raise ClusterConfigError(
                f"TF_CONFIG: expected JSON such as {_TF_CONFIG_EXAMPLE}, received {show(text)} "
                f"({error})"
            ) from None
        config = validation.expect_object(config, "TF_CONFIG", "the whole text")
        cluster = validation.expect_object(config.get("cluster", {}), "TF_CONFIG", "cluster")
        task = validation.expect_object(config.get("task", {}), "TF_CONFIG", "task")
        kind, index = task.get("type"), task.get("index")
        if not cluster:
            # Some schedulers describe a job of one task as an explicitly empty cluster.
            alone = (
                "cluster" in config
                and kind in ("chief", "master", "worker")
                and index in (0, "0", None)
            )
            if kind is None or alone:
                return cls.local()
            raise ClusterConfigError(
                f'TF_CONFIG: "cluster" is missing or empty; expected it beside "task", for example '
                f'{_TF_CONFIG_EXAMPLE}, received only "task": {show(task)}'
            )
        if kind is None or index is None:
            absent = '"task"' if not task else '"task.type"' if kind is None else '"task.index"'
            raise ClusterConfigError(
                f'TF_CONFIG: {absent} is missing; expected "task": {{"type": one of '
                f'{", ".join(ROLES)}, "index": a number}} beside "cluster", received '
                f'"task": {show(config.get("task"))}'
            )
        return cls.from_tasks(cluster, kind, index, "TF_CONFIG")

    @classmethod
    def from_resolver(cls, resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Cluster:
        """Returns the cluster that a `tf.distribute.cluster_resolver.ClusterResolver` describes.

        Args:
          resolver: TFConfigClusterResolver, SlurmClusterResolver, SimpleClusterResolver or any
            object with their `cluster_spec()`, `task_type` and `task_id`.

        Raises:
          ClusterConfigError: the resolver fails, or describes an invalid cluster.
        """
        source = type(resolver).__name__
        try:
            cluster = resolver.cluster_spec().as_dict()
            # After `cluster_spec`, in which Slurm's resolver determines its own task.
            kind, index = resolver.task_type, resolver.task_id
        except Exception as error:  # resolvers query Slurm, Kubernetes or a cloud, with any error
            raise ClusterConfigError(f"{source}: cannot describe the cluster: {error}") from error
        if not cluster:
            return cls.local()
        if kind is None or index is None:
            raise ClusterConfigError(
                f"{source}: expected task_type and task_id of this process, received "
                f"task_type={kind!r} and task_id={index!r}"
            )
        return cls.from_tasks(cluster, kind, index, source)

    @classmethod
    def from_tasks(
        cls, cluster: Mapping[str, object], kind: object, index: object, source: str
    ) -> Cluster:
        """Returns the cluster of addresses by role, as in `TF_CONFIG`.

        Args:
          cluster: lists of "host:port" by role.
          kind: the role of this task.
          index: its index among the tasks of that role.
          source: the origin of the values in messages.

        Raises:
          ClusterConfigError: the values contradict each other.
        """
        roles: dict[str, tuple[str, ...]] = {}
        for name, addresses in cluster.items():
            role = validation.role_name(name, source, "cluster")
            if not isinstance(addresses, (list, tuple)):
                raise ClusterConfigError(
                    f'{source}: expected cluster "{name}" to be a list of "host:port", received '
                    f"{show(addresses)}"
                )
            roles[role] = roles.get(role, ()) + tuple(addresses)
        validation.check_tasks(roles, source)
        role = validation.role_name(kind, source, "task.type")
        task_index = validation.task_index(index, source)
        validation.check_task(roles, role, task_index, source)
        fields = {_FIELD_OF_ROLE[name]: addresses for name, addresses in roles.items()}
        return cls(**fields, task_type=role, task_index=task_index)

    @property
    def is_local(self) -> bool:
        """True if this process trains alone, without a cluster."""
        return not self.as_dict()

    @property
    def training_addresses(self) -> tuple[str, ...]:
        """The addresses of the tasks that train, by rank; empty when local."""
        return self.chief + self.workers

    @property
    def world_size(self) -> int:
        """The number of tasks that train; 1 when local."""
        return max(1, len(self.training_addresses))

    @property
    def rank(self) -> int | None:
        """This task's rank in [0, world_size), or None if it does not train."""
        if self.task_type == "chief":
            return 0
        return len(self.chief) + self.task_index if self.task_type == "worker" else None

    @property
    def is_chief(self) -> bool:
        """True for rank 0, which writes checkpoints even if no task is called "chief"."""
        return self.rank == 0

    @property
    def is_data_task(self) -> bool:
        """Whether this task is one of TensorFlow's data service."""
        return self.task_type in DATA_ROLES

    @property
    def address(self) -> str | None:
        """This task's own "host:port"; None when local and for an evaluator without one."""
        addresses = self.as_dict().get(self.task_type, [])
        return addresses[self.task_index] if self.task_index < len(addresses) else None

    @property
    def global_index(self) -> int:
        """This task's index among all tasks, from 0: chief, workers, ps, data tasks, evaluators.

        The evaluators come last, because the cluster need not name them.
        """
        global_index = 0
        for role, addresses in self._in_order():
            if role == self.task_type:
                break
            global_index += len(addresses)
        return global_index + self.task_index

    def _in_order(self) -> list[tuple[str, tuple[str, ...]]]:
        roles = ("chief", "worker", "ps", "data_dispatcher", "data_worker", "evaluator")
        return [(role, getattr(self, _FIELD_OF_ROLE[role])) for role in roles]

    @property
    def task_name(self) -> str:
        """This task's name in messages: "chief", "worker 1", "ps 0"."""
        has_index = self.task_type not in ("chief", "data_dispatcher")
        return f"{self.task_type} {self.task_index}" if has_index else self.task_type

    def name_of_rank(self, rank: int) -> str:
        """Returns the name of the task of `rank` in messages: "chief" or "worker 3"."""
        self._check_rank(rank)
        return "chief" if rank < len(self.chief) else f"worker {rank - len(self.chief)}"

    def name_of_address(self, address: str) -> str:
        """Returns the name of the task that trains at an address; the address of another one."""
        addresses = self.training_addresses
        return self.name_of_rank(addresses.index(address)) if address in addresses else address

    def address_of_rank(self, rank: int) -> str | None:
        """Returns "host:port" of the task of `rank`; None when local."""
        self._check_rank(rank)
        return None if self.is_local else self.training_addresses[rank]

    def describe_rank(self, rank: int) -> str:
        """Returns name and address of the task of `rank`: "worker 3 at host:port"."""
        address = self.address_of_rank(rank)
        return f"{self.name_of_rank(rank)} at {address}" if address else self.name_of_rank(rank)

    def describe_ranks(self, ranks: Iterable[int]) -> str:
        """Returns names and addresses of the tasks of `ranks`, shortened if there are many."""
        return validation.show_some(map(self.describe_rank, ranks))

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is outside [0, {self.world_size})")

    def as_dict(self) -> dict[str, list[str]]:
        """Returns {"chief": [...], "worker": [...], ...}, without roles that have no task."""
        tasks = {role: list(getattr(self, field)) for role, field in _FIELD_OF_ROLE.items()}
        return {role: addresses for role, addresses in tasks.items() if addresses}

    def tf_config(self) -> str:
        """Returns the `TF_CONFIG` text from which `from_tf_config` makes an equal cluster."""
        if self.is_local:
            return "{}"
        task = {"type": self.task_type, "index": self.task_index}
        return json.dumps({"cluster": self.as_dict(), "task": task})


@functools.cache
def _log_once(text: str, level: int) -> None:
    _log.log(level, "%s", text)


def tf_config_text(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the variable `TF_CONFIG`; None if it is not set.

    Args:
      environ: variables by name; this process's environment if None.
    """
    return (os.environ if environ is None else environ).get("TF_CONFIG")
