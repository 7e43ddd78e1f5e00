"""Slurm: the tasks of a step, which `srun` starts.

A process is a rank if it has a number in a step: `SLURM_PROCID` and `SLURM_STEP_ID`. The batch
script has `SLURM_PROCID=0`, but no step; a shell of `salloc` has neither, or is in the interactive
step. A process that `mpirun` or `torchrun` starts inside of a step inherits the variables of that
launcher's own daemon, and is no task of the step either.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.config.environments import nodelist
from tfdist.config.environments.launched import LaunchedProcess, Remark, required, shown, whole
from tfdist.config.environments.ports import port_of
from tfdist.errors import ClusterConfigError

LAUNCHER = "Slurm"
# Numbers of the steps that Slurm makes by itself begin here: interactive, batch, extern, ...
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Each is set by a launcher that starts processes inside of a step, and never by `srun`.
_INNER_LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": "mpirun",
    "MPI_LOCALRANKID": "mpiexec",
    "TORCHELASTIC_RUN_ID": "torchrun",
}
# Consecutive jobs are this many blocks of ports apart, for their steps. It has no divisor in common
# with the number of blocks, so that all blocks are used.
_BLOCKS_PER_JOB = 17


def launched(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Returns this process among the tasks of its step; None outside of a step.

    Raises:
      ClusterConfigError: a variable is missing or unusable.
    """
    if _not_a_task(environ) is not None or not environ.get("SLURM_PROCID"):
        return None
    # The first one is the step's own; the second may be the allocation's.
    size_variable = (
        "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    )
    return LaunchedProcess(
        LAUNCHER,
        required(environ, "SLURM_PROCID", "SLURM_STEP_ID"),
        required(environ, size_variable, "SLURM_PROCID"),
        "SLURM_PROCID",
        size_variable,
    )


def remark(environ: Mapping[str, str]) -> Remark | None:
    """Returns why a process inside of an allocation is no task of a step; None elsewhere."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    reason = _not_a_task(environ)
    if reason is None:
        return None
    try:
        tasks = whole(environ, "SLURM_NTASKS") or sum(
            nodelist.counts(environ.get("SLURM_TASKS_PER_NODE") or "1", "SLURM_TASKS_PER_NODE")
        )
    except ClusterConfigError:
        tasks = 1
    is_warning = tasks > 1 and not any(environ.get(name) for name in _INNER_LAUNCHERS)
    return Remark(f"SLURM_JOB_ID={environ['SLURM_JOB_ID']} ignored: {reason}", is_warning)


def _not_a_task(environ: Mapping[str, str]) -> str | None:
    """Returns why this process is no task of a step, or None if it is one."""
    for variable, launcher in _INNER_LAUNCHERS.items():
        if environ.get(variable):
            return f"{launcher} has started this process ({variable}), not srun"
    step = _step(environ)
    if not environ.get("SLURM_PROCID") or step is None:
        absent = "SLURM_STEP_ID" if environ.get("SLURM_PROCID") else "SLURM_PROCID"
        return (
            f"{absent} is not set, so that a batch script or a shell has started this process; "
            "srun starts the tasks of a job"
        )
    if not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP:
        return (
            f"SLURM_STEP_ID={step} is the step of a batch script or a shell; srun starts the "
            "tasks of a job"
        )
    return None


def _step(environ: Mapping[str, str]) -> str | None:
    return environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or None


def addresses(environ: Mapping[str, str], launched: LaunchedProcess) -> tuple[list[str], str]:
    """Returns "host:port" of each task of the step, and the variables that gave them.

    Raises:
      ClusterConfigError: the variables contradict each other, or one is missing.
    """
    of_step = bool(environ.get("SLURM_STEP_NODELIST"))
    list_name = "SLURM_STEP_NODELIST" if of_step else "SLURM_JOB_NODELIST"
    counts_name = "SLURM_STEP_TASKS_PER_NODE" if of_step else "SLURM_TASKS_PER_NODE"
    for name in (list_name, counts_name):
        if not environ.get(name):
            raise ClusterConfigError(f"Slurm: expected {name} beside SLURM_PROCID, received none")
    hosts = nodelist.hosts(environ[list_name], list_name)
    counts = nodelist.counts(environ[counts_name], counts_name)
    both = shown(environ, (list_name, counts_name))
    if len(counts) != len(hosts):
        raise ClusterConfigError(
            f"Slurm: expected tasks on each node, received {len(hosts)} nodes and {len(counts)} "
            f"counts ({both})"
        )
    if sum(counts) != launched.size:
        raise ClusterConfigError(
            f"Slurm: expected {launched.size_variable}={launched.size} tasks on the nodes, "
            f"received {sum(counts)} ({both})"
        )
    layout = _layout(counts, environ)
    _check_own(environ, launched, layout)
    ports, port_source = _ports(environ, hosts, counts)
    # All tasks are here: no other host needs to reach them.
    names = ["127.0.0.1"] if len(hosts) == 1 else hosts
    return [f"{names[node]}:{ports[local]}" for node, local in layout], f"{both}; {port_source}"


def _ports(
    environ: Mapping[str, str], hosts: list[str], counts: list[int]
) -> tuple[list[int], str]:
    """Returns the port of each number on a node, and their origin."""
    max_count = max(counts)
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "").strip()
    if reserved:
        ports = nodelist.numbers(reserved, "SLURM_STEP_RESV_PORTS")
        if len(ports) < max_count:
            raise ClusterConfigError(
                f"Slurm: expected a reserved port for each task on a node, received {len(ports)} "
                f"(SLURM_STEP_RESV_PORTS={reserved}) for {max_count} tasks on "
                f"{hosts[counts.index(max_count)]}; see srun --resv-ports"
            )
        return ports, f"ports: SLURM_STEP_RESV_PORTS={reserved}"
    job = required(environ, "SLURM_JOB_ID", "SLURM_PROCID")
    step = int(_step(environ) or 0)
    block = _BLOCKS_PER_JOB * job + step
    return (
        [port_of(block, local) for local in range(max_count)],
        f"ports: from {port_of(block, 0)} on, by SLURM_JOB_ID={job} and SLURM_STEP_ID={step}",
    )


def _layout(counts: list[int], environ: Mapping[str, str]) -> list[tuple[int, int]]:
    """Returns the node of each task, and its number there.

    Slurm's distributions: "block" fills one node after the other, "cyclic" deals one task to each
    node in turn, and "plane" several.
    """
    distribution = environ.get("SLURM_DISTRIBUTION", "").strip().lower() or "block"
    first = distribution.partition(":")[0].partition(",")[0].partition("=")[0]
    if first in ("block", "*", "unknown"):
        at_once = max(counts)
    elif first == "cyclic":
        at_once = 1
    elif first == "plane":
        at_once = required(environ, "SLURM_DIST_PLANESIZE", "SLURM_DISTRIBUTION=plane")
    else:
        at_once = 0
    if at_once < 1:
        raise ClusterConfigError(
            "Slurm: expected SLURM_DISTRIBUTION to be block, cyclic or plane, received "
            f"{distribution}; set TF_CONFIG for another one"
        )
    layout: list[tuple[int, int]] = []
    placed = [0] * len(counts)
    while len(layout) < sum(counts):
        for node, count in enumerate(counts):
            taken = min(at_once, count - placed[node])
            layout += [(node, placed[node] + task) for task in range(taken)]
            placed[node] += taken
    return layout


def _check_own(
    environ: Mapping[str, str], launched: LaunchedProcess, layout: list[tuple[int, int]]
) -> None:
    node, local = whole(environ, "SLURM_NODEID"), whole(environ, "SLURM_LOCALID")
    expected = layout[launched.index]
    received = (
        expected[0] if node is None else node,
        expected[1] if local is None else local,
    )
    if received != expected:
        raise ClusterConfigError(
            f"Slurm: expected task {launched.index} to be number {expected[1]} on node "
            f"{expected[0]} of the step "
            f"(SLURM_DISTRIBUTION={environ.get('SLURM_DISTRIBUTION') or 'block'}), "
            f"received SLURM_NODEID={node} and SLURM_LOCALID={local}; start the step with "
            "srun --distribution=block"
        )
