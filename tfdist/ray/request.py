"""The request for a job on Ray, and its result. Pure: no Ray."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from tfdist.errors import ClusterConfigError
from tfdist.launch.policies.elastic import WorkerRange

PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_ELASTIC_FAILURES = 10


@dataclasses.dataclass(frozen=True)
class RayResult:
    """The result of a job.

    Attributes:
      values: the results of `train_fn`, by the workers' numbers; of an elastic job only the workers
        that were there at its end.
      restarts: the restarts after failures: of the job, or of single workers of an elastic one.
      preemptions: the restarts after preemption notices, or the workers that left after one.
      checkpoint_dir: as given.
    """

    values: tuple
    restarts: int
    preemptions: int
    checkpoint_dir: str | None


@dataclasses.dataclass(frozen=True)
class RayRequest:
    """The validated arguments of `tfdist.ray.run`.

    Attributes:
      num_workers: the workers at the start.
      num_ps: parameter servers.
      workers: the range of an elastic job, or None.
      resources: of each worker.
      ps_resources: of each parameter server.
      placement: strategy of the placement group.
      max_failures: restarts after failures.
      checkpoint_dir: directory of all tasks, or None.
      variables: environment variables of all tasks.
      placement_timeout: seconds to wait for resources.
    """

    num_workers: int
    num_ps: int
    workers: WorkerRange | None
    resources: Mapping[str, float]
    ps_resources: Mapping[str, float]
    placement: str
    max_failures: int
    checkpoint_dir: str | None
    variables: Mapping[str, str]
    placement_timeout: float

    @classmethod
    def of(
        cls,
        *,
        num_workers: int,
        num_ps: int,
        elastic: tuple[int, int] | None,
        resources: Mapping[str, float] | None,
        ps_resources: Mapping[str, float] | None,
        placement: str,
        max_failures: int | None,
        checkpoint_dir: str | None,
        variables: Mapping[str, str] | None,
        placement_timeout: float,
    ) -> RayRequest:
        """Returns the request of these arguments.

        Raises:
          ClusterConfigError: they are out of range, or contradict each other.
        """
        _at_least(1, "num_workers", num_workers)
        _at_least(0, "num_ps", num_ps)
        if max_failures is None:
            max_failures = 0 if elastic is None else _ELASTIC_FAILURES
        _at_least(0, "max_failures", max_failures)
        if placement not in PLACEMENTS:
            raise ClusterConfigError(
                f"tfdist.ray.run: expected placement to be one of {', '.join(PLACEMENTS)}, "
                f"received {placement!r}"
            )
        if not placement_timeout > 0:
            raise ClusterConfigError(
                "tfdist.ray.run: expected placement_timeout to be more than 0 seconds, received "
                f"{placement_timeout!r}"
            )
        return cls(
            num_workers=num_workers,
            num_ps=num_ps,
            workers=None if elastic is None else _range(elastic, num_workers),
            resources=_resources("resources", resources),
            ps_resources=_resources("ps_resources", ps_resources),
            placement=placement,
            max_failures=max_failures,
            checkpoint_dir=checkpoint_dir,
            variables=dict(variables or {}),
            placement_timeout=placement_timeout,
        )

    def task_variables(
        self, workers: Sequence[str], servers: Sequence[str], index: int, secret: Mapping[str, str]
    ) -> dict[str, str]:
        """Returns the variables that make a process a task of the job.

        Args:
          workers: "host:port" of each worker.
          servers: "host:port" of each parameter server.
          index: of the task; the servers follow the workers.
          secret: the variables of the job's secret, and of its encryption.
        """
        chiefs = 1 if servers and self.workers is None else 0
        roles = {"chief": workers[:chiefs], "worker": workers[chiefs:], "ps": servers}
        if index >= len(workers):
            task = {"type": "ps", "index": index - len(workers)}
        elif index < chiefs:
            task = {"type": "chief", "index": 0}
        else:
            task = {"type": "worker", "index": index - chiefs}
        cluster = {role: list(addresses) for role, addresses in roles.items() if addresses}
        found = {**secret, "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        if self.workers is not None:
            found["TFDIST_ELASTIC"] = str(self.workers)
        if self.checkpoint_dir is not None:
            found["TFDIST_CHECKPOINT_DIR"] = self.checkpoint_dir
        return found


def actor_options(resources: Mapping[str, float]) -> dict[str, object]:
    """Returns Ray's options of an actor that needs these resources."""
    rest = dict(resources)
    options: dict[str, object] = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
    if "memory" in rest:
        options["memory"] = rest.pop("memory")
    return {**options, "resources": rest}


def _range(elastic: tuple[int, int], start: int) -> WorkerRange:
    try:
        min_workers, max_workers = elastic
    except (TypeError, ValueError):
        raise ClusterConfigError(
            "tfdist.ray.run: expected elastic to be (min_workers, max_workers), such as (2, 8), "
            f"received {elastic!r}"
        ) from None
    return WorkerRange(min_workers, max_workers, start)


def _resources(name: str, given: Mapping[str, float] | None) -> dict[str, float]:
    found = {"CPU": 1} if given is None else dict(given)
    for resource, amount in found.items():
        if not amount >= 0:
            raise ClusterConfigError(
                f"tfdist.ray.run: expected {name}[{resource!r}] to be 0 or more, received {amount}"
            )
    if not any(found.values()):
        raise ClusterConfigError(
            f"tfdist.ray.run: expected {name} to name an amount above 0, received {found}; Ray "
            "places nothing that needs nothing"
        )
    return {resource: amount for resource, amount in found.items() if amount}


def _at_least(least: int, name: str, given: int) -> None:
    if given < least:
        raise ClusterConfigError(
            f"tfdist.ray.run: expected {name} to be {least} or more, received {given}"
        )
