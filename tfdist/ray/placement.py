"""The placement group of a job: all its tasks are placed, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from tfdist.errors import RayJobError
from tfdist.ray.request import RayRequest

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


@contextlib.contextmanager
def placed(request: RayRequest) -> Iterator[PlacementGroup]:
    """Yields a placement group with a bundle for each task, the workers first; removes it at last.

    Raises:
      RayJobError: the cluster has no room within `placement_timeout`.
    """
    bundles = [dict(request.resources)] * request.num_workers
    bundles += [dict(request.ps_resources)] * request.num_ps
    group = placement_group(bundles, strategy=request.placement)
    try:
        if not group.wait(request.placement_timeout):
            raise RayJobError(
                f"no room for the job within {request.placement_timeout:g} s; expected "
                f"{request.num_workers} x {dict(request.resources)}"
                + (f" and {request.num_ps} x {dict(request.ps_resources)}" * bool(request.num_ps))
                + f", placement {request.placement}; the cluster has {_amounts()}"
            )
        yield group
    finally:
        remove_placement_group(group)


def _amounts() -> str:
    free = ray.available_resources()
    total = ray.cluster_resources()
    names = [name for name in sorted(total) if not name.startswith(("node:", "object_store"))]
    return ", ".join(f"{name}: {free.get(name, 0):g} of {total[name]:g} free" for name in names)
