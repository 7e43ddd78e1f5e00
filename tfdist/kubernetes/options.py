"""The options of a job on Kubernetes: names, numbers and places, checked once."""

from __future__ import annotations

import dataclasses
import enum
import math

from tfdist.config.elastic import Elastic
from tfdist.config.environments.kubernetes import PORT
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import checks, server_memory
from tfdist.kubernetes.resources import SERVER, Resources
from tfdist.kubernetes.volumes import Volume

# The longest name of a pod is NAME-evaluator-0-0, or NAME-worker-0- and a number. JobSet and Job
# add a hyphen and five characters, and a label holds 63.
MAX_NAME = 40
_DOMAIN = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*"
_PATH_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
# The grammar of references of the OCI distribution specification.
_IMAGE = (
    rf"(({_DOMAIN})(:[0-9]{{1,5}})?/)?{_PATH_PART}(/{_PATH_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME_WORDS = (
    "a name of lower-case letters a to z, digits and hyphens, which begins with a letter and ends "
    "with a letter or digit"
)
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# Of Kubernetes for priority classes that users make.
_MAX_PRIORITY = 1_000_000_000
# The place for temporary files where the root of the file system is read-only.
SCRATCH = "/tmp"
# The place of a certificate of cert-manager.
TLS_PATH = "/var/run/tfdist-tls"
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
class JobOptions:
    """A job, as `tfdist k8s render` takes it.

    Args:
      name: of all its objects, at most 40 characters: lower-case letters, digits and hyphens.
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
      server: the resources of each parameter server. `TFDIST_PS_MEMORY` follows from its memory,
        unless `environment` has it; see `server_memory`.
      gpus: the NVIDIA GPUs of each worker.
      volumes: the claims that every pod mounts.
      checkpoint_dir: `TFDIST_CHECKPOINT_DIR`, in one of the volumes that can be written.
      environment: further variables, of every container.
      user: number of the user and group that the containers run as, not 0.
      kueue: the local queue of Kueue that admits the job.
      volcano: the queue of the Volcano scheduler that starts the job at once or not at all.
      priority: the value of a priority class that is made for the job.
      priority_class: the name of an existing one, instead.
      metrics_port: the port at which each pod serves its metrics.
      pod_monitor: whether there is a PodMonitor, by which the Prometheus operator finds the pods.
      read_only_root: whether the pods can write in their volumes and in `/tmp` alone, which then is
        a directory of the pod's own.
      network_policy: whether only the job's own pods can connect to them; metrics are excepted.
      no_egress: whether the pods also can connect to each other and to DNS alone.
      metrics_namespace: the only namespace whose pods can read metrics; None lets all.
      tls: whether the tasks encrypt their connections, with certificates made from the secret.
      tls_issuer: the issuer of cert-manager that makes the certificates instead, "NAME" for an
        Issuer of the namespace or "ClusterIssuer/NAME"; None for none.
      tasks_per_worker: the number of waiting data tasks for which the autoscaler keeps one worker;
        None makes no autoscaler. For the engine `STATEFULSET` alone.
      predicts: whether the command is `tfdist predict`, whose workers need no other worker. For the
        engine `JOB` alone.

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
    server: Resources = SERVER
    gpus: int = 0
    volumes: tuple[Volume, ...] = ()
    checkpoint_dir: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    user: int = 10001
    kueue: str | None = None
    volcano: str | None = None
    priority: int | None = None
    priority_class: str | None = None
    metrics_port: int | None = None
    pod_monitor: bool = False
    read_only_root: bool = False
    network_policy: bool = False
    no_egress: bool = False
    metrics_namespace: str | None = None
    tasks_per_worker: int | None = None
    tls: bool = False
    tls_issuer: str | None = None
    predicts: bool = False

    def __post_init__(self) -> None:
        checks.match("--name", self.name, _NAME, _NAME_WORDS, MAX_NAME)
        checks.match(
            "--image", self.image, _IMAGE, "an image such as registry.example/train:1", 255
        )
        if not self.command or not all(self.command[:1]):
            raise ClusterConfigError(
                "expected a program to run after --, as in '-- python train.py', received none"
            )
        for word in self.command:
            checks.text("the command after --", word)
        if self.namespace is not None:
            checks.match("--namespace", self.namespace, checks.LABEL, checks.LABEL_WORDS, 63)
        self.worker.check("--")
        self.server.check("--ps-")
        self._check_numbers()
        self._check_server_memory()
        self._check_places()
        self._check_scheduling()
        self._check_network()
        self._check_tls()
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
    def priority_class_name(self) -> str | None:
        """The priority class of the pods."""
        return self.priority_class or (None if self.priority is None else self.name)

    def _check_numbers(self) -> None:
        if isinstance(self.workers, int):
            checks.number("--workers", self.workers, 1)
        elif self.workers.max_workers is None:
            raise ClusterConfigError("--workers: expected MIN:MAX, received no MAX")
        if self.parallelism is not None:
            if self.elastic is None:
                raise ClusterConfigError(
                    "--parallelism: expected an elastic job, --workers MIN:MAX, received a fixed "
                    f"number of workers, {self.workers}"
                )
            least = self.elastic.start_workers or self.min_workers
            if not least <= self.parallelism <= self.max_workers:
                raise ClusterConfigError(
                    f"--parallelism: expected {least} to {self.max_workers} pods, since {least} "
                    f"form the job, received {self.parallelism}"
                )
        checks.number("--ps", self.ps, 0)
        checks.number("--gpus", self.gpus, 0)
        checks.number("--restarts", self.restarts, 0)
        checks.number("--user", self.user, 1)
        if not 0 < self.saving < 86400:
            raise ClusterConfigError(
                f"--saving: expected seconds, above 0 and below a day, received {self.saving:g}"
            )
        if self.metrics_port is not None and not (
            1024 <= self.metrics_port <= 65535 and self.metrics_port != PORT
        ):
            raise ClusterConfigError(
                f"--metrics-port: expected 1024 to 65535 without {PORT}, the port of the tasks, "
                f"received {self.metrics_port}"
            )

    def _check_server_memory(self) -> None:
        memory, names = self.server.memory, {name for name, _ in self.environment}
        if not self.ps or memory is None or "TFDIST_PS_MEMORY" in names:
            return
        if server_memory.bytes_of(memory) < server_memory.LEAST:
            raise ClusterConfigError(
                f"--ps-memory: expected 1Gi or more, of which 768Mi are for Python and TensorFlow, "
                f"or --env TFDIST_PS_MEMORY=BYTES, received {memory}"
            )

    def _check_places(self) -> None:
        paths = [volume.path for volume in self.volumes]
        if len(set(paths)) < len(paths):
            raise ClusterConfigError(f"--volume: expected different paths, received {paths}")
        seen: dict[str, str] = {}
        for name, value in self.environment:
            checks.match("--env", name, _VARIABLE, "the name of a variable", 255)
            if name in seen or name in _RENDERED:
                raise ClusterConfigError(
                    f"--env: expected each variable once, and none that the manifest sets, "
                    f"received {name}"
                )
            checks.text(f"--env {name}", value)
            seen[name] = value
        for volume in self.volumes:
            if self.read_only_root and volume.path == SCRATCH and volume.read_only:
                raise ClusterConfigError(
                    f"--volume: expected {SCRATCH} to be writable, since --read-only-root leaves "
                    f"no other place for temporary files, received {volume.claim} there, read-only"
                )
        if self.checkpoint_dir is None:
            return
        checks.path("--checkpoint-dir", self.checkpoint_dir)
        if not any(
            not volume.read_only and f"{self.checkpoint_dir}/".startswith(f"{volume.path}/")
            for volume in self.volumes
        ):
            raise ClusterConfigError(
                f"--checkpoint-dir: expected a path in a volume that can be written, received "
                f"{self.checkpoint_dir} and volumes at {paths}: files saved elsewhere are lost "
                "with their pod"
            )

    def _check_scheduling(self) -> None:
        for name in ("kueue", "volcano", "priority_class"):
            value = getattr(self, name)
            if value is not None:
                checks.match(
                    checks.option(name), value, checks.SUBDOMAIN, checks.SUBDOMAIN_WORDS, 253
                )
        if self.kueue is not None and self.volcano is not None:
            raise ClusterConfigError("expected one of --kueue and --volcano, received both")
        if self.priority is not None and self.priority_class is not None:
            raise ClusterConfigError(
                "expected one of --priority and --priority-class, received both"
            )
        if self.priority is not None and abs(self.priority) > _MAX_PRIORITY:
            raise ClusterConfigError(
                f"--priority: expected -{_MAX_PRIORITY} to {_MAX_PRIORITY}, "
                f"received {self.priority}"
            )

    def _check_network(self) -> None:
        for name in ("no_egress", "metrics_namespace"):
            if getattr(self, name) and not self.network_policy:
                raise ClusterConfigError(
                    f"{checks.option(name)}: expected --network-policy with it, received none"
                )
        for name in ("metrics_namespace", "pod_monitor"):
            if getattr(self, name) and self.metrics_port is None:
                raise ClusterConfigError(
                    f"{checks.option(name)}: expected --metrics-port P, at which metrics are read, "
                    "received none"
                )
        if self.metrics_namespace is not None:
            checks.match(
                "--metrics-namespace",
                self.metrics_namespace,
                checks.LABEL,
                checks.LABEL_WORDS,
                63,
            )

    def _check_tls(self) -> None:
        if self.tls_issuer is None:
            return
        checks.match(
            "--tls-issuer",
            self.tls_issuer.removeprefix("ClusterIssuer/"),
            checks.SUBDOMAIN,
            f"NAME or ClusterIssuer/NAME: {checks.SUBDOMAIN_WORDS}",
            253,
        )
        if self.engine is Engine.TFJOB:
            raise ClusterConfigError(
                "--tls-issuer: expected an engine whose pods have names that are known beforehand, "
                "received tfjob: encrypt by the secret, with --tls"
            )
        paths = [volume.path for volume in self.volumes]
        if TLS_PATH in paths:
            raise ClusterConfigError(
                f"--volume: expected another path than {TLS_PATH}, where the certificates are"
            )

    def _check_engine(self) -> None:
        if self.predicts and (self.engine is not Engine.JOB or self.ps or self.evaluator):
            raise ClusterConfigError(
                "--predict: expected --engine job and workers alone, received "
                f"--engine {self.engine.value} with {self.ps} parameter servers"
                f"{' and an evaluator' if self.evaluator else ''}"
            )
        if self.engine is Engine.TFJOB and self.elastic is not None:
            raise ClusterConfigError(
                "--engine tfjob: expected a fixed number of workers, received MIN:MAX: a TFJob "
                "that may grow describes its cluster in a form that TensorFlow 2 cannot read; use "
                "job or jobset"
            )
        if self.engine is Engine.STATEFULSET:
            if self.elastic is None:
                raise ClusterConfigError(
                    f"--engine statefulset: expected an elastic job, --workers MIN:MAX, received "
                    f"{self.workers}: use job or jobset for a fixed number"
                )
            if self.evaluator:
                raise ClusterConfigError(
                    "--engine statefulset: expected no --evaluator, received one: it would be "
                    "started again after each end"
                )
        if self.tasks_per_worker is None:
            return
        checks.number("--autoscale", self.tasks_per_worker, 1)
        if self.engine is not Engine.STATEFULSET:
            raise ClusterConfigError(
                f"--autoscale: expected --engine statefulset, received {self.engine.value}, whose "
                "kind has no scale subresource for an autoscaler to set"
            )
        if self.metrics_port is None:
            raise ClusterConfigError(
                "--autoscale: expected --metrics-port P, from which Prometheus reads the number of "
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
        "TFDIST_METRICS_SAME_PORT",
        "TFDIST_PS",
        "TFDIST_SECRET",
        "TFDIST_SECRET_FILE",
        "TFDIST_SERVICE",
        "TFDIST_TLS",
        "TFDIST_TLS_CA",
        "TFDIST_TLS_CERT",
        "TFDIST_TLS_KEY",
        "TFDIST_WORKERS",
        "TF_CONFIG",
    }
)
