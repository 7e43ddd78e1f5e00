"""MPI launchers: the ranks that `mpirun`, `mpiexec` or `prterun` starts.

Open MPI sets `OMPI_COMM_WORLD_*`; MPICH's and Intel's launchers `PMI_*`; a PMIx launcher
`PMIX_RANK`, without the number of ranks. None of them names the hosts of the other ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfdist.config.environments.launched import LaunchedProcess, Remark, required, shown, whole
from tfdist.config.environments.ports import block_of, port_of
from tfdist.errors import ClusterConfigError

LAUNCHER = "MPI"
# Launcher, and the variables of rank, size and number of ranks on this host.
_OPEN_MPI = (
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_PMI = ("MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")
_PMIX = ("MPI (PMIx)", "PMIX_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# torchrun sets it, and what it starts inherits the variables of the launcher of torchrun.
_TORCHRUN = "TORCHELASTIC_RUN_ID"
# Each is the same in all ranks of a job, and another one in another job.
_NAMES_OF_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")


def launched(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Returns this process among the ranks; None if no MPI launcher has started it.

    Raises:
      ClusterConfigError: a variable is missing or unusable.
    """
    flavor = _flavor(environ)
    if flavor is None or environ.get(_TORCHRUN):
        return None
    launcher, rank, size, _ = flavor
    if flavor is _PMIX and not environ.get(size):
        raise ClusterConfigError(
            f"{launcher}: {rank}={environ[rank]} is set, but no variable says how many ranks there "
            "are; expected WORLD_SIZE too, or TF_CONFIG='{}' in a process that trains alone"
        )
    found = LaunchedProcess(
        launcher, required(environ, rank, size), required(environ, size, rank), rank, size
    )
    inner = whole(environ, "PMIX_RANK") if flavor is _OPEN_MPI else None
    if inner is not None and inner != found.index:
        raise ClusterConfigError(
            f"{launcher}: {rank}={found.index}, but PMIX_RANK={inner}: this process has inherited "
            "the variables of two launchers; start it with one, or set TF_CONFIG"
        )
    return found


def remark(environ: Mapping[str, str]) -> Remark | None:
    """Returns why the variables of an MPI launcher are not this process's own; None elsewhere."""
    flavor = _flavor(environ)
    if flavor is None or not environ.get(_TORCHRUN):
        return None
    return Remark(
        f"{shown(environ, (flavor[1],))} ignored: torchrun has started this process ({_TORCHRUN})"
    )


def is_one_host(environ: Mapping[str, str], launched: LaunchedProcess) -> bool | None:
    """Returns whether all ranks are on this host; None if no variable says it."""
    flavor = _flavor(environ)
    local = whole(environ, flavor[3]) if flavor is not None else None
    return None if local is None else local == launched.size


def local_size_variable(environ: Mapping[str, str]) -> str:
    """Returns the name of the variable with the number of ranks on this host."""
    flavor = _flavor(environ)
    assert flavor is not None
    return flavor[3]


def first_port(environ: Mapping[str, str]) -> tuple[int, str]:
    """Returns the port of rank 0 if `MASTER_PORT` does not give it, and its origin."""
    for name in _NAMES_OF_JOB:
        if environ.get(name):
            return port_of(block_of(environ[name]), 0), f"{name}={environ[name][:40]}"
    return port_of(block_of(f"user {os.getuid()}"), 0), "the user's number"


def _flavor(environ: Mapping[str, str]) -> tuple[str, str, str, str] | None:
    for flavor in (_OPEN_MPI, _PMI, _PMIX):
        if environ.get(flavor[1]) and (flavor is not _PMI or environ.get(flavor[2])):
            return flavor
    return None
