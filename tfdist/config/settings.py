"""The settings of a job: the `TFDIST_*` environment variables.

Only this package reads the environment; Ruff refuses `os.environ` elsewhere. This module does not
import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping

from tfdist.config import tls, validation
from tfdist.config.elastic import Elastic
from tfdist.errors import ClusterConfigError


@dataclasses.dataclass(frozen=True)
class Settings:
    """The `TFDIST_*` variables.

    Args:
      secret: the shared secret of all tasks (`TFDIST_SECRET`, or the content of the file
        `TFDIST_SECRET_FILE`), or None.
      rendezvous_timeout: seconds to wait for all ranks (`TFDIST_RENDEZVOUS_TIMEOUT`).
      data_port: port for data connections, 0 for any free one (`TFDIST_DATA_PORT`).
      exit_timeout: seconds that an early finisher waits for the others (`TFDIST_EXIT_TIMEOUT`).
      peer_memory: whether tasks of one machine and user may share memory, and read each other's
        (`TFDIST_PEER_MEMORY`).
      checkpoint_dir: the snapshot directory of a `ps` task whose script names none, and of `fit` at
        a preemption notice if it has no other (`TFDIST_CHECKPOINT_DIR`).
      preemption_marker: the file by which the chief says that the job has saved its state at a
        preemption notice, or None (`TFDIST_PREEMPTION_MARKER`).
      ps_memory: bytes that a `ps` task may hold, 0 for no limit (`TFDIST_PS_MEMORY`).
      data_service_dir: the directory of the `data_dispatcher`'s journal, or None
        (`TFDIST_DATA_SERVICE_DIR`).
      debug_dir: the directory of the flight recorder's dumps, or None (`TFDIST_DEBUG_DIR`).
      timeline: the file of the job's timeline, or None (`TFDIST_TIMELINE`).
      metrics_port: the port of the metrics of the job's first task, the others' follow; 0 for any
        free one; None serves none (`TFDIST_METRICS_PORT`).
      metrics_same_port: whether each task has a host of its own, as a pod of Kubernetes, so that
        all listen at `metrics_port` itself (`TFDIST_METRICS_SAME_PORT`).
      metrics_by_default: whether `tfdist run` has chosen `metrics_port` unasked, so that a task
        continues where its port is taken (`TFDIST_METRICS_BY_DEFAULT`).
      state_dir: the directory in which a task that serves metrics leaves its last state, or None
        (`TFDIST_STATE_DIR`).
      straggler_period: seconds between two straggler reports, 0 for none
        (`TFDIST_STRAGGLER_PERIOD`).
      restarts: how often this task was started again (`TFDIST_RESTARTS`).
      elastic: the limits of an elastic job (`TFDIST_ELASTIC`: "min:max" or "min:max:start"); None
        means a job of fixed size.
      elastic_start_timeout: seconds after which an elastic job begins with fewer workers than it
        starts with, if its least number is there (`TFDIST_ELASTIC_START_TIMEOUT`); None: never.
      elastic_records: bytes of the results of `fit`, `evaluate` and `predict` that a worker keeps
        in memory; further results are kept in a file (`TFDIST_ELASTIC_RECORDS`).
      tombstone_dir: the directory that tells late processes of an elastic job that it has ended, or
        None (`TFDIST_TOMBSTONE_DIR`).
      job_id: the job's name there (`TFDIST_JOB_ID`; in a step of Slurm its numbers), or None.
      interface: the network interface for data connections, by its name or as a network such as
        "10.1.0.0/16" (`TFDIST_INTERFACE`); None means the interface of the task's address.
      tls: the origin of this task's certificate (`TFDIST_TLS`, or `TFDIST_TLS_CERT`,
        `TFDIST_TLS_KEY` and `TFDIST_TLS_CA`); None: connections are not encrypted.
    """

    secret: bytes | None = dataclasses.field(default=None, repr=False)
    rendezvous_timeout: float = 300.0
    data_port: int = 0
    exit_timeout: float = 300.0
    peer_memory: bool = True
    checkpoint_dir: str | None = None
    preemption_marker: str | None = None
    ps_memory: int = 0
    data_service_dir: str | None = None
    debug_dir: str | None = None
    timeline: str | None = None
    metrics_port: int | None = None
    metrics_same_port: bool = False
    metrics_by_default: bool = False
    state_dir: str | None = None
    straggler_period: int = 300
    restarts: int = 0
    elastic: Elastic | None = None
    elastic_start_timeout: float | None = None
    elastic_records: int = 1 << 30
    tombstone_dir: str | None = None
    job_id: str | None = None
    interface: str | None = None
    tls: tls.Tls | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Returns the settings of an environment.

        Args:
          environ: variables by name; this process's environment if None.

        Raises:
          ClusterConfigError: a variable has an unusable value; names the variable.
        """
        environ = os.environ if environ is None else environ
        elastic = environ.get("TFDIST_ELASTIC", "").strip()
        secret = validation.secret(environ)
        settings = cls(
            secret=secret,
            rendezvous_timeout=validation.seconds(
                environ, "TFDIST_RENDEZVOUS_TIMEOUT", cls.rendezvous_timeout
            ),
            data_port=validation.port(environ, "TFDIST_DATA_PORT", cls.data_port),
            exit_timeout=validation.seconds(environ, "TFDIST_EXIT_TIMEOUT", cls.exit_timeout),
            peer_memory=validation.switch(environ, "TFDIST_PEER_MEMORY", cls.peer_memory),
            checkpoint_dir=environ.get("TFDIST_CHECKPOINT_DIR", "").strip() or None,
            preemption_marker=environ.get("TFDIST_PREEMPTION_MARKER", "").strip() or None,
            ps_memory=validation.size(environ, "TFDIST_PS_MEMORY", cls.ps_memory),
            data_service_dir=environ.get("TFDIST_DATA_SERVICE_DIR", "").strip() or None,
            debug_dir=environ.get("TFDIST_DEBUG_DIR", "").strip() or None,
            timeline=environ.get("TFDIST_TIMELINE", "").strip() or None,
            metrics_port=validation.port(environ, "TFDIST_METRICS_PORT", None),
            metrics_same_port=validation.switch(
                environ, "TFDIST_METRICS_SAME_PORT", cls.metrics_same_port
            ),
            metrics_by_default=validation.switch(
                environ, "TFDIST_METRICS_BY_DEFAULT", cls.metrics_by_default
            ),
            state_dir=environ.get("TFDIST_STATE_DIR", "").strip() or None,
            straggler_period=validation.count(
                environ, "TFDIST_STRAGGLER_PERIOD", cls.straggler_period
            ),
            restarts=validation.count(environ, "TFDIST_RESTARTS", cls.restarts),
            elastic=Elastic.from_text(elastic, "TFDIST_ELASTIC") if elastic else None,
            elastic_start_timeout=validation.seconds(environ, "TFDIST_ELASTIC_START_TIMEOUT", None),
            elastic_records=validation.size(environ, "TFDIST_ELASTIC_RECORDS", cls.elastic_records),
            tombstone_dir=environ.get("TFDIST_TOMBSTONE_DIR", "").strip() or None,
            job_id=validation.job_id(environ),
            interface=environ.get("TFDIST_INTERFACE", "").strip() or None,
            tls=tls.from_environment(environ, secret),
        )
        start = settings.elastic_start_timeout
        if start is not None and start >= settings.rendezvous_timeout:
            raise ClusterConfigError(
                "TFDIST_ELASTIC_START_TIMEOUT: expected less than TFDIST_RENDEZVOUS_TIMEOUT, "
                f"{settings.rendezvous_timeout:g} s, after which no job begins, received {start:g}"
            )
        if settings.tombstone_dir is not None and settings.job_id is None:
            raise ClusterConfigError(
                "TFDIST_TOMBSTONE_DIR: expected the job's name, TFDIST_JOB_ID, beside it, received "
                "none: without it no other job with this directory would ever begin"
            )
        return settings


def allows_untested_keras() -> bool:
    """Whether this process may train with a Keras that is newer than the newest tested one.

    `TFDIST_ALLOW_UNTESTED_KERAS` is no field of `Settings`: it also concerns processes without a
    job, which validate no other variable.

    Raises:
      ClusterConfigError: the variable is neither 0 nor 1.
    """
    return validation.switch(os.environ, "TFDIST_ALLOW_UNTESTED_KERAS", False)


def environment_with_secret() -> dict[str, str]:
    """Returns this process's environment, with a new random secret if it has none.

    The launcher gives it to its tasks: other users of the machine can connect to a loopback
    address, too.
    """
    environ = dict(os.environ)
    if "TFDIST_SECRET" not in environ and "TFDIST_SECRET_FILE" not in environ:
        environ["TFDIST_SECRET"] = secrets.token_hex(32)
    return environ


def set_variables(values: Mapping[str, str]) -> None:
    """Sets variables of this process, which was started before its job was known.

    Call it before anything else of tfdist reads the environment.

    Args:
      values: such as `TF_CONFIG` and `TFDIST_SECRET`.
    """
    os.environ.update(values)


def secret_variables() -> dict[str, str]:
    """Returns the variables that give this process's secret to others, and how they encrypt.

    The secret is a new one if this process has none.

    Raises:
      ClusterConfigError: the variables cannot be used.
    """
    environ = environment_with_secret()
    found = tls.from_environment(environ, validation.secret(environ))
    name = "TFDIST_SECRET" if "TFDIST_SECRET" in environ else "TFDIST_SECRET_FILE"
    return {name: environ[name], **({} if found is None else found.variables)}


def environment_with_tls(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment whose connections are encrypted: by its secret, if it names no files.

    Args:
      environ: variables by name, with a secret.
    """
    if any(environ.get(name, "").strip() for name in tls.VARIABLES):
        return dict(environ)
    return {**environ, "TFDIST_TLS": tls.SECRET_MODE}


def environment_without_job() -> dict[str, str]:
    """Returns this process's environment without what makes a process a task of a job.

    `tfdist plan` starts a training script with it, which must neither wait for others nor touch the
    snapshots of the job.
    """
    of_a_job = (
        *("TF_CONFIG", "TFDIST_ELASTIC", "TFDIST_CHECKPOINT_DIR", "TFDIST_DATA_SERVICE_DIR"),
        "TFDIST_TOMBSTONE_DIR",
    )
    return {name: value for name, value in os.environ.items() if name not in of_a_job}


def default_grpc_verbosity() -> None:
    """Lets gRPC print errors only, unless `GRPC_VERBOSITY` is set.

    By default it prints a line for each idle connection that it closes.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
