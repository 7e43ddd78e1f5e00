"""The cluster as the launcher of this process describes it.

Each module reads one environment. They are asked in this order, and the first in which this process
is one of several wins:

1. `TF_CONFIG`, which describes a job completely.
2. `slurm`: the tasks of a step.
3. `mpi`: the ranks of an MPI launcher.
4. `kubernetes`: the pods of an indexed Job or of a JobSet.
5. `torchrun`: `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.

A launcher's job of one process says nothing, because such a process often starts others: a shell
of `srun --pty`, from which `mpirun` is called. If another environment contradicts the winner,
that is an error, since no rule can tell which of the two is right. `TF_CONFIG` needs no other
variable, and others that are set with it are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from tfdist.config.environments import host_exchange, kubernetes, mpi, slurm, torchrun
from tfdist.config.environments.launched import (
    DetectedCluster,
    HostExchange,
    LaunchedProcess,
    LaunchedTasks,
    Remark,
    shown,
    whole,
)
from tfdist.errors import ClusterConfigError

TF_CONFIG = "TF_CONFIG"
NOTHING = "nothing"


class _Environment(Protocol):
    """A module of this package."""

    LAUNCHER: str

    def launched(self, environ: Mapping[str, str]) -> LaunchedProcess | None: ...

    def remark(self, environ: Mapping[str, str]) -> Remark | None: ...


_ENVIRONMENTS: tuple[_Environment, ...] = (slurm, mpi, kubernetes, torchrun)


def detect(
    environ: Mapping[str, str] | None = None, *, needs_others: bool = True
) -> DetectedCluster:
    """Returns what an environment says of the cluster, without asking any other process.

    Args:
      environ: variables by name; this process's environment if None.
      needs_others: whether this process must reach the others. If not, ranks whose hosts no
        variable names get addresses of this host, and no exchange; and a pod may have a higher
        index than its manifest has workers.

    Raises:
      ClusterConfigError: a variable is missing or unusable, or two launchers contradict each other.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(TF_CONFIG, "")
    if text.strip():
        return _given(environ, text)
    if not needs_others:
        environ = kubernetes.grown(environ)
    chosen: tuple[_Environment, LaunchedProcess] | None = None
    alone: LaunchedProcess | None = None
    notes: list[str] = []
    warnings: list[str] = []
    for environment in _ENVIRONMENTS:
        try:
            launched = environment.launched(environ)
        except ClusterConfigError as error:
            if chosen is None and alone is None:
                raise
            notes.append(f"ignored: {error}")
            continue
        remark = environment.remark(environ) if launched is None else None
        if remark is not None:
            (warnings if remark.is_warning else notes).append(remark.text)
        if launched is None:
            continue
        if chosen is not None:
            _compare(chosen[1], launched)
            notes.append(f"{_described(launched)}: says the same")
        elif launched.size > 1:
            chosen = environment, launched
        else:
            alone = alone or launched
            notes.append(f"{_described(launched)}: a job of one process")
    if chosen is None:
        if alone is None and environ.get("TFDIST_PS", "0").strip() not in ("", "0"):
            warnings.append(f"{shown(environ, ('TFDIST_PS',))} ignored: no launcher was found")
        source = NOTHING if alone is None else alone.launcher
        # A process that is known to be the only one has nothing to be warned of.
        if alone is not None:
            notes, warnings = [*notes, *warnings], []
        return DetectedCluster(source, tuple(notes), tuple(warnings))
    environment, launched = chosen
    servers = _servers(environ, launched)
    if environment is slurm or environment is kubernetes:
        addresses, origin = environment.addresses(environ, launched)
    else:
        assert environment is mpi or environment is torchrun
        addresses, origin = host_exchange.addresses(
            environ, launched, environment, servers, needs_others
        )
    notes = [_described(launched), origin, *notes, *warnings]
    if isinstance(addresses, HostExchange):
        return DetectedCluster(launched.launcher, tuple(notes), exchange=addresses)
    tasks = tasks_of(environ, addresses, launched.index, servers)
    return DetectedCluster(launched.launcher, tuple(notes), tasks=tasks)


def tasks_of(
    environ: Mapping[str, str], addresses: Sequence[str], index: int, servers: int
) -> LaunchedTasks:
    """Returns the tasks of processes that a launcher numbers.

    The last ones are parameter servers. With any, the first one is the chief, which Estimators and
    training with parameter servers require; an elastic job has none.

    Args:
      environ: variables by name.
      addresses: "host:port" of each process.
      index: of this process.
      servers: the number of parameter servers.
    """
    is_elastic = bool(environ.get("TFDIST_ELASTIC", "").strip())
    training = len(addresses) - servers
    chiefs = 1 if servers and not is_elastic else 0
    tasks = {
        "chief": addresses[:chiefs],
        "worker": addresses[chiefs:training],
        "ps": addresses[training:],
    }
    if index < chiefs:
        role, task = "chief", index
    elif index < training:
        role, task = "worker", index - chiefs
    else:
        role, task = "ps", index - training
    return LaunchedTasks(tasks, role, task)


def _given(environ: Mapping[str, str], text: str) -> DetectedCluster:
    """Returns that `TF_CONFIG` describes the cluster."""
    ignored = []
    for environment in _ENVIRONMENTS:
        try:
            launched = environment.launched(environ)
        except ClusterConfigError as error:
            ignored.append(f"ignored: {error}")
        else:
            if launched is not None:
                ignored.append(f"{_described(launched)}: ignored, since TF_CONFIG is set")
    return DetectedCluster(TF_CONFIG, ("TF_CONFIG is set", *ignored), tf_config=text)


def _servers(environ: Mapping[str, str], launched: LaunchedProcess) -> int:
    servers = whole(environ, "TFDIST_PS") or 0
    size = f"{launched.size_variable}={launched.size}"
    if servers >= launched.size:
        raise ClusterConfigError(
            f"TFDIST_PS: expected fewer parameter servers than processes, received {servers} of "
            f"{launched.size} ({size}): no process would train"
        )
    workers = whole(environ, "TFDIST_WORKERS")
    if workers is not None and workers + servers != launched.size:
        raise ClusterConfigError(
            f"{launched.launcher}: {size}, but TFDIST_WORKERS={workers} and TFDIST_PS={servers}; "
            "expected TFDIST_WORKERS + TFDIST_PS to be the number of processes"
        )
    return servers


def _compare(winner: LaunchedProcess, other: LaunchedProcess) -> None:
    for own, variable, value, other_variable in (
        (winner.size, winner.size_variable, other.size, other.size_variable),
        (winner.index, winner.index_variable, other.index, other.index_variable),
    ):
        if own != value:
            raise ClusterConfigError(
                f"{winner.launcher} and {other.launcher} contradict each other: {variable}={own}, "
                f"but {other_variable}={value}; expected one launcher to start this process, or "
                "equal values. Unset the variables of the other one, or set TF_CONFIG"
            )


def _described(launched: LaunchedProcess) -> str:
    index, size = launched.index_variable, launched.size_variable
    return f"{launched.launcher}: {index}={launched.index}, {size}={launched.size}"
