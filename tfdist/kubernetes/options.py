"""The options of a job on Kubernetes: names, numbers and places, checked once."""

from __future__ import annotations

import dataclasses
import enum
import math
import posixpath
import re

from tfdist.config.elastic import Elastic
from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError

# The longest name of a pod is NAME-evaluator-0-0, or NAME-worker-0- and a number. JobSet and Job
# add a hyphen and five characters, and a label holds 63.
MAX_NAME = 40
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_DOMAIN = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*"
_PATH_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
# The grammar of references of the OCI distribution specification.
_IMAGE = (
    rf"(({_DOMAIN})(:[0-9]{{1,5}})?/)?{_PATH_PART}(/{_PATH_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_CPU = r"[0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m"
_MEMORY = r"[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# Of Kubernetes for priority classes that users make.
_MAX_PRIORITY = 1_000_000_000
# The place for temporary files where the root of the file system is read-only.
SCRATCH = "/tmp"
# The default terminationGracePeriodSeconds of a Pod.
_LEAST_GRACE = 30


class Engine(enum.Enum):
    """The kind of object that starts the pods."""

    JOB = "job"
    JOBSET = "jobset"
    TRAINJOB = "trainjob"
    TFJOB = "tfjob"
    STATEFULSET = "statefulset"


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources that each pod of a role requests, and may use at most.

    Args:
      cpu: processors, such as "4" or "500m"; None leaves it to the namespace.
      memory: bytes, such as "8Gi"; None likewise.

    Raises:
      ClusterConfigError: a value is no quantity of Kubernetes.
    """

    cpu: str | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        if self.cpu is not None:
            _match("cpu", self.cpu, _CPU, "processors such as 4 or 500m")
        if self.memory is not None:
            _match("memory", self.memory, _MEMORY, "bytes such as 512Mi or 8Gi")


@dataclasses.dataclass(frozen=True)
class Volume:
    """A persistent volume claim that exists, and where the pods see it.

    Args:
      claim: the name of the claim.
      path: an absolute path in the container.
      read_only: whether the pods may only read it.

    Raises:
      ClusterConfigError: the name or the path cannot be used.

    Example:
      >>> Volume.from_text("data:/data:ro")
      Volume(claim='data', path='/data', read_only=True)
    """

    claim: str
    path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        _match("volume", self.claim, _SUBDOMAIN, "the name of a claim (RFC 1123)", 253)
        _path("volume", self.path)

    @classmethod
    def from_text(cls, text: str) -> Volume:
        """Returns the volume in "CLAIM:PATH" or "CLAIM:PATH:ro".

        Raises:
          ClusterConfigError: the text has another form.
        """
        parts = text.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] != "ro"):
            raise ClusterConfigError(
                f"volume: expected CLAIM:PATH or CLAIM:PATH:ro, received {show(text)}"
            )
        return cls(parts[0], parts[1], len(parts) == 3)


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """A job, as `tfdist k8s render` takes it.

    Args:
      name: of all its objects, at most 40 characters (RFC 1123).
      image: of all its containers.
      command: the words that each container runs, first the program.
      engine: the kind of object that starts the pods.
      workers: the number of training tasks, or the limits of an elastic job.
      parallelism: the worker pods that are asked for at first, of an elastic job; None for as many
        as it may have. Workers for which there is no room wait, and join later.
      ps: the number of parameter servers.
      evaluator: whether there is an evaluator.
      namespace: of the objects; None leaves it to `kubectl`.
      restarts: how often what fails is started again.
      saving: seconds from SIGTERM until the job is saved, as its log says.
      worker: the resources of each worker, and of the evaluator.
      server: the resources of each parameter server.
      volumes: the claims that every pod mounts.
      checkpoint_dir: `TFDIST_CHECKPOINT_DIR`, in one of the volumes that can be written.
      environment: further variables, of every container.
      user: number of the user and group that the containers run as, not 0.
      kueue: the local queue of Kueue that admits the job.
      volcano: the queue of the Volcano scheduler that starts the job at once or not at all.
      priority: the value of a priority class that is made for the job.
      priority_class: the name of an existing one, instead.
      metrics_port: `TFDIST_METRICS_PORT`.
      read_only_root: whether the pods can write in their volumes and in `/tmp` alone, which then is
        a directory of the pod's own.
      network_policy: whether only the job's own pods can connect to them; metrics are excepted.
      no_egress: whether the pods also can connect to each other and to DNS alone.
      metrics_namespace: the only namespace whose pods can read metrics; None lets all.
      tasks_per_worker: the number of waiting data tasks for which the autoscaler keeps one worker;
        None makes no autoscaler. For the engine `STATEFULSET` alone.

    Raises:
      ClusterConfigError: a value cannot be used, or two contradict each other.
    """

    name: str
    image: str
    command: tuple[str, ...]
    engine: Engine = Engine.JOBSET
    workers: int | Elastic = 1
    parallelism: int | None = None
    ps: int = 0
    evaluator: bool = False
    namespace: str | None = None
    restarts: int = 3
    saving: float = 10.0
    worker: Resources = Resources()
    server: Resources = Resources()
    volumes: tuple[Volume, ...] = ()
    checkpoint_dir: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    user: int = 10001
    kueue: str | None = None
    volcano: str | None = None
    priority: int | None = None
    priority_class: str | None = None
    metrics_port: int | None = None
    read_only_root: bool = False
    network_policy: bool = False
    no_egress: bool = False
    metrics_namespace: str | None = None
    tasks_per_worker: int | None = None

    def __post_init__(self) -> None:
        _match("name", self.name, r"[a-z]([-a-z0-9]*[a-z0-9])?", "a name of RFC 1123", MAX_NAME)
        _match("image", self.image, _IMAGE, "an image such as registry.example/train:1", 255)
        if not self.command or not all(self.command[:1]):
            raise ClusterConfigError("command: expected at least one word, received none")
        for word in self.command:
            _text("command", word)
        if self.namespace is not None:
            _match("namespace", self.namespace, _LABEL, "a name of RFC 1123", 63)
        self._check_numbers()
        self._check_places()
        self._check_scheduling()
        self._check_network()
        self._check_engine()

    @property
    def elastic(self) -> Elastic | None:
        """The limits of an elastic job; None if the number of workers is fixed."""
        return self.workers if isinstance(self.workers, Elastic) else None

    @property
    def max_workers(self) -> int:
        """The largest number of workers; their addresses are known from the beginning."""
        if isinstance(self.workers, int):
            return self.workers
        assert self.workers.max_workers is not None
        return self.workers.max_workers

    @property
    def min_workers(self) -> int:
        """The least number of workers that train."""
        return self.workers if isinstance(self.workers, int) else self.workers.min_workers

    @property
    def asked_workers(self) -> int:
        """The number of worker pods that the manifest asks for."""
        return self.max_workers if self.parallelism is None else self.parallelism

    @property
    def has_chief(self) -> bool:
        """Whether the first training task is a chief.

        That is so with parameter servers, as where tfdist finds the cluster by itself; a TFJob,
        which says the roles, has a chief beside an evaluator too, as `tfdist run` has.
        """
        is_needed = self.ps > 0 or (self.evaluator and self.engine is Engine.TFJOB)
        return self.elastic is None and is_needed

    @property
    def grace(self) -> int:
        """Seconds from SIGTERM to SIGKILL: three times the duration of a save, and 30 at least."""
        return max(_LEAST_GRACE, math.ceil(3 * self.saving))

    @property
    def last_metrics_port(self) -> int:
        """The port of the last task's metrics: each task listens one above the one before; or 0."""
        if self.metrics_port is None:
            return 0
        return self.metrics_port + self.max_workers + self.ps + int(self.evaluator) - 1

    @property
    def priority_class_name(self) -> str | None:
        """The priority class of the pods."""
        return self.priority_class or (None if self.priority is None else self.name)

    def _check_numbers(self) -> None:
        if isinstance(self.workers, int):
            _number("workers", self.workers, 1)
        elif self.workers.max_workers is None:
            raise ClusterConfigError("workers: expected MIN:MAX, received no MAX")
        if self.parallelism is not None:
            if self.elastic is None:
                raise ClusterConfigError(
                    "parallelism: expected an elastic job, --workers MIN:MAX, received a fixed "
                    f"number of workers, {self.workers}"
                )
            least = self.elastic.start_workers or self.min_workers
            if not least <= self.parallelism <= self.max_workers:
                raise ClusterConfigError(
                    f"parallelism: expected {least} to {self.max_workers} pods, since {least} "
                    f"form the job, received {self.parallelism}"
                )
        _number("ps", self.ps, 0)
        _number("restarts", self.restarts, 0)
        _number("user", self.user, 1)
        if not 0 < self.saving < 86400:
            raise ClusterConfigError(
                f"saving: expected seconds, above 0 and below a day, received {self.saving:g}"
            )
        if self.metrics_port is not None and not 1024 <= self.metrics_port <= 65535:
            raise ClusterConfigError(
                f"metrics_port: expected 1024 to 65535, received {self.metrics_port}"
            )

    def _check_places(self) -> None:
        paths = [volume.path for volume in self.volumes]
        if len(set(paths)) < len(paths):
            raise ClusterConfigError(f"volume: expected different paths, received {paths}")
        seen: dict[str, str] = {}
        for name, value in self.environment:
            _match("env", name, _VARIABLE, "the name of a variable", 255)
            if name in seen or name in _RENDERED:
                raise ClusterConfigError(
                    f"env: expected each variable once, and none that the manifest sets, received "
                    f"{name}"
                )
            _text(f"env {name}", value)
            seen[name] = value
        for volume in self.volumes:
            if self.read_only_root and volume.path == SCRATCH and volume.read_only:
                raise ClusterConfigError(
                    f"volume: expected {SCRATCH} to be writable, since read_only_root leaves no "
                    f"other place for temporary files, received {volume.claim} there, read-only"
                )
        if self.checkpoint_dir is None:
            return
        _path("checkpoint_dir", self.checkpoint_dir)
        if not any(
            not volume.read_only and f"{self.checkpoint_dir}/".startswith(f"{volume.path}/")
            for volume in self.volumes
        ):
            raise ClusterConfigError(
                f"checkpoint_dir: expected a path in a volume that can be written, received "
                f"{self.checkpoint_dir} and volumes at {paths}: files saved elsewhere are lost "
                "with their pod"
            )

    def _check_scheduling(self) -> None:
        for name in ("kueue", "volcano", "priority_class"):
            value = getattr(self, name)
            if value is not None:
                _match(name, value, _SUBDOMAIN, "a name of RFC 1123", 253)
        if self.kueue is not None and self.volcano is not None:
            raise ClusterConfigError("expected one of kueue and volcano, received both")
        if self.priority is not None and self.priority_class is not None:
            raise ClusterConfigError("expected one of priority and priority_class, received both")
        if self.priority is not None and abs(self.priority) > _MAX_PRIORITY:
            raise ClusterConfigError(
                f"priority: expected -{_MAX_PRIORITY} to {_MAX_PRIORITY}, received {self.priority}"
            )

    def _check_network(self) -> None:
        for name in ("no_egress", "metrics_namespace"):
            if getattr(self, name) and not self.network_policy:
                raise ClusterConfigError(f"{name}: expected network_policy with it, received none")
        if self.metrics_namespace is not None:
            _match("metrics_namespace", self.metrics_namespace, _LABEL, "a name of RFC 1123", 63)
            if self.metrics_port is None:
                raise ClusterConfigError(
                    "metrics_namespace: expected a metrics_port, at which its pods read metrics, "
                    "received none"
                )
        if self.network_policy and self.last_metrics_port > 65535:
            raise ClusterConfigError(
                f"metrics_port: expected ports up to 65535, since each task has one, received "
                f"{self.metrics_port} to {self.last_metrics_port}"
            )

    def _check_engine(self) -> None:
        if self.engine is Engine.TFJOB and self.elastic is not None:
            raise ClusterConfigError(
                "engine tfjob: expected a fixed number of workers, received MIN:MAX: a TFJob that "
                "may grow describes its cluster in a form that TensorFlow 2 cannot read; use job "
                "or jobset"
            )
        if self.engine is Engine.STATEFULSET:
            if self.elastic is None:
                raise ClusterConfigError(
                    f"engine statefulset: expected an elastic job, workers MIN:MAX, received "
                    f"{self.workers}: use job or jobset for a fixed number"
                )
            if self.evaluator:
                raise ClusterConfigError(
                    "engine statefulset: expected no evaluator, received one: it would be started "
                    "again after each end"
                )
        if self.tasks_per_worker is None:
            return
        _number("tasks_per_worker", self.tasks_per_worker, 1)
        if self.engine is not Engine.STATEFULSET:
            raise ClusterConfigError(
                f"autoscale: expected engine statefulset, received {self.engine.value}, whose "
                "kind has no scale subresource for an autoscaler to set"
            )
        if self.metrics_port is None:
            raise ClusterConfigError(
                "autoscale: expected a metrics_port, from which Prometheus reads the number of "
                "waiting tasks, received none"
            )


# Variables that the manifest sets itself, or that decide which task a pod is.
_RENDERED = frozenset(
    {
        "HOSTNAME",
        "JOBSET_NAME",
        "JOB_COMPLETION_INDEX",
        "JOB_GLOBAL_INDEX",
        "REPLICATED_JOB_NAME",
        "TFDIST_CHECKPOINT_DIR",
        "TFDIST_ELASTIC",
        "TFDIST_METRICS_PORT",
        "TFDIST_PS",
        "TFDIST_SECRET",
        "TFDIST_SECRET_FILE",
        "TFDIST_SERVICE",
        "TFDIST_WORKERS",
        "TF_CONFIG",
    }
)


def _match(what: str, value: str, pattern: str, expected: str, longest: int = 64) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value) or len(value) > longest:
        raise ClusterConfigError(
            f"{what}: expected {expected}, at most {longest} characters, received {show(value)}"
        )


def _text(what: str, value: str) -> None:
    # A process cannot be given a zero byte, nor YAML half of a character, which Python makes of a
    # byte of the command line that is no UTF-8.
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ClusterConfigError(
            f"{what}: expected text of UTF-8 without a zero byte, received {show(value)}"
        )


def _path(what: str, value: str) -> None:
    is_normal = value.startswith("/") and value != "/" and posixpath.normpath(value) == value
    # A colon ends the path of a mount in some container runtimes.
    if not is_normal or ":" in value or not value.isprintable() or value.startswith("//"):
        raise ClusterConfigError(
            f"{what}: expected an absolute path such as /checkpoints, without '..' and ':', "
            f"received {show(value)}"
        )


def _number(what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ClusterConfigError(
            f"{what}: expected a whole number, {least} or more, received {show(value)}"
        )
