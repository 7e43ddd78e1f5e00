"""The kinds of object that start the pods of a job, one in a module.

Each module has `objects`, which returns what it renders with the comment that stands above it.
"""

from __future__ import annotations

from typing import Protocol

from tfdist.kubernetes.engines import job, jobset, statefulset, tfjob, trainjob
from tfdist.kubernetes.names import Object
from tfdist.kubernetes.options import Engine, JobOptions


class _Engine(Protocol):
    """A module of this package."""

    def objects(self, job: JobOptions) -> list[tuple[str, Object]]: ...


_ENGINES: dict[Engine, _Engine] = {
    Engine.JOB: job,
    Engine.JOBSET: jobset,
    Engine.TRAINJOB: trainjob,
    Engine.TFJOB: tfjob,
    Engine.STATEFULSET: statefulset,
}
# They make the headless service themselves.
HAVE_A_SERVICE = frozenset({Engine.JOBSET, Engine.TRAINJOB, Engine.TFJOB})


def objects(job: JobOptions) -> list[tuple[str, Object]]:
    """Returns the objects that start the pods of a job, each with a comment."""
    return _ENGINES[job.engine].objects(job)
