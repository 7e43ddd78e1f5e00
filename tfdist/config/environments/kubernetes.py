"""Kubernetes: the pods of an indexed Job, or of a JobSet.

A pod is a task only if its manifest says how many tasks there are, in `TFDIST_WORKERS` and
`TFDIST_PS`: the pods of many indexed Jobs have nothing to do with each other. A headless service
gives each pod a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.config import validation
from tfdist.config.environments.launched import LaunchedProcess, Remark, required, whole
from tfdist.errors import ClusterConfigError

LAUNCHER = "Kubernetes"
# The port of Kubernetes TFJob's tasks.
PORT = 2222


def launched(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Returns this pod as a process of its job, the workers first; None if it is no task of a job.

    Raises:
      ClusterConfigError: a variable is missing or unusable.
    """
    if not environ.get("JOB_COMPLETION_INDEX") or not environ.get("TFDIST_WORKERS"):
        return None
    workers = required(environ, "TFDIST_WORKERS", "JOB_COMPLETION_INDEX")
    servers = whole(environ, "TFDIST_PS") or 0
    size_variable = "TFDIST_WORKERS + TFDIST_PS" if servers else "TFDIST_WORKERS"
    if not environ.get("JOBSET_NAME"):
        index = required(environ, "JOB_COMPLETION_INDEX", "TFDIST_WORKERS")
        variable = "JOB_COMPLETION_INDEX"
    else:
        index, variable = _index_in_set(environ, workers, servers)
    return LaunchedProcess(LAUNCHER, index, workers + servers, variable, size_variable)


def grown(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the variables with as many workers as the index of this pod shows.

    A Job whose pods do not need each other may get more of them while it runs. Its template stays,
    and so does `TFDIST_WORKERS`.

    Raises:
      ClusterConfigError: a variable is unusable.
    """
    workers = whole(environ, "TFDIST_WORKERS")
    if not workers or whole(environ, "TFDIST_PS") or environ.get("JOB_GLOBAL_INDEX"):
        return environ
    index = whole(environ, "JOB_COMPLETION_INDEX")
    if index is None or index < workers:
        return environ
    return {**environ, "TFDIST_WORKERS": str(index + 1)}


def _index_in_set(environ: Mapping[str, str], workers: int, servers: int) -> tuple[int, str]:
    """Returns the index of a JobSet's pod, and the variable that gives it."""
    role = _role(environ)
    count, first = (workers, 0) if role == "worker" else (servers, workers)
    if not count:
        raise ClusterConfigError(
            f"Kubernetes: expected TFDIST_{'PS' if role == 'ps' else 'WORKERS'} above 0 in a pod "
            f"of REPLICATED_JOB_NAME={role}, received 0"
        )
    if environ.get("JOB_GLOBAL_INDEX"):
        # One Job for each task: its number counts the Jobs of all roles.
        index = required(environ, "JOB_GLOBAL_INDEX", "JOBSET_NAME")
        if not first <= index < first + count:
            raise ClusterConfigError(
                f"Kubernetes: expected JOB_GLOBAL_INDEX in {first}..{first + count - 1} for "
                f"REPLICATED_JOB_NAME={role}, received {index} (TFDIST_WORKERS={workers}, "
                f"TFDIST_PS={servers}; the JobSet must list the Job 'worker' before 'ps')"
            )
        return index, "JOB_GLOBAL_INDEX"
    index = required(environ, "JOB_COMPLETION_INDEX", "JOBSET_NAME")
    if index >= count:
        raise ClusterConfigError(
            f"Kubernetes: expected JOB_COMPLETION_INDEX in 0..{count - 1} for "
            f"REPLICATED_JOB_NAME={role}, received {index} (TFDIST_WORKERS={workers}, "
            f"TFDIST_PS={servers})"
        )
    return first + index, "JOB_COMPLETION_INDEX"


def _role(environ: Mapping[str, str]) -> str:
    role = environ.get("REPLICATED_JOB_NAME", "").strip()
    if role not in ("worker", "ps"):
        raise ClusterConfigError(
            "Kubernetes: expected REPLICATED_JOB_NAME to be worker or ps beside JOBSET_NAME, "
            f"received {role or 'none'}"
        )
    return role


def remark(environ: Mapping[str, str]) -> Remark | None:
    """Returns why a pod of an indexed Job is no task of a cluster; None elsewhere."""
    if not environ.get("JOB_COMPLETION_INDEX") or environ.get("TFDIST_WORKERS"):
        return None
    return Remark(
        f"JOB_COMPLETION_INDEX={environ['JOB_COMPLETION_INDEX']} ignored: TFDIST_WORKERS is not "
        "set, so that the pods of this Job are taken to be independent of each other",
        # The author of the manifest gave the variables of a JobSet for a reason.
        is_warning=bool(environ.get("JOBSET_NAME")),
    )


def addresses(environ: Mapping[str, str], launched: LaunchedProcess) -> tuple[list[str], str]:
    """Returns "host:port" of each pod, and the variables that gave them.

    Raises:
      ClusterConfigError: a variable is missing, or contradicts this pod's name.
    """
    set_name = environ.get("JOBSET_NAME", "").strip()
    own = environ.get("HOSTNAME", "").strip().partition(".")[0]
    if set_name:
        workers = required(environ, "TFDIST_WORKERS", "JOBSET_NAME")
        one_job_each = bool(environ.get("JOB_GLOBAL_INDEX"))
        names = []
        for task in range(launched.size):
            role, index = ("worker", task) if task < workers else ("ps", task - workers)
            names.append(
                f"{set_name}-{role}-{index}-0" if one_job_each else f"{set_name}-{role}-0-{index}"
            )
        # JobSet's own service has the name of the set.
        default_service, job_variables = set_name, "JOBSET_NAME, REPLICATED_JOB_NAME"
    else:
        job = own.removesuffix(f"-{launched.index}")
        if not job or job == own:
            raise ClusterConfigError(
                f"Kubernetes: expected HOSTNAME to be the pod's name JOB-{launched.index}, since "
                f"JOB_COMPLETION_INDEX={launched.index}, received HOSTNAME={own or '(none)'}"
            )
        names = [f"{job}-{task}" for task in range(launched.size)]
        default_service, job_variables = job, f"HOSTNAME={own}"
    if own and own != names[launched.index]:
        raise ClusterConfigError(
            f"Kubernetes: expected the pod's name to be {names[launched.index]}, since "
            f"{launched.index_variable}={environ.get(launched.index_variable)}, received "
            f"HOSTNAME={own}"
        )
    service = environ.get("TFDIST_SERVICE", "").strip()
    if not re.fullmatch(r"[A-Za-z0-9.-]*", service):
        raise ClusterConfigError(
            f"TFDIST_SERVICE: expected the name of a headless service, received "
            f"{validation.show(service)}"
        )
    origin = f"TFDIST_SERVICE={service}" if service else f"service {default_service}"
    return (
        [f"{name}.{service or default_service}:{PORT}" for name in names],
        f"{job_variables}; {origin}; port {PORT}",
    )
