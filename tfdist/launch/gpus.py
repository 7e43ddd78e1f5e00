"""Which GPUs each task of a host may use: `tfdist run --gpus-per-worker`.

TensorFlow takes all GPUs that `CUDA_VISIBLE_DEVICES` names, or without it all of the machine, and
all of their memory. So two tasks of one host need parts of that list. It may name GPUs by numbers
or by identifiers ("GPU-8932f937", "MIG-..."):

    CUDA_VISIBLE_DEVICES of the host    3,5,6,7
    worker 0, --gpus-per-worker 2       3,5
    worker 1                            6,7
    ps 0                                none
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def variables(environment: Mapping[str, str], gpus: Sequence[int] | None) -> dict[str, str]:
    """Returns the variable that lets a task see its GPUs only.

    Args:
      environment: of the task's host; the tasks divide its list of GPUs.
      gpus: the places of the task's GPUs in that list, in rising order; None means all GPUs, and
        no variable.

    Raises:
      OSError: the list is too short.
    """
    if gpus is None:
        return {}
    listed = environment.get(_VARIABLE)
    if listed is None:
        return {_VARIABLE: ",".join(map(str, gpus))}
    names = _usable(listed)
    if gpus and gpus[-1] >= len(names):
        raise OSError(
            errno.ENODEV,
            f"--gpus-per-worker: expected {gpus[-1] + 1} GPUs or more in {_VARIABLE} of this host, "
            f"received {len(names)}: {listed!r}",
        )
    return {_VARIABLE: ",".join(names[place] for place in gpus)}


def _usable(listed: str) -> list[str]:
    """Returns the names before the first invalid one, at which CUDA stops to read the list."""
    names = [name.strip() for name in listed.split(",")]
    end = next((i for i, name in enumerate(names) if not name or name.startswith("-")), None)
    return names[:end]


class GpuShares:
    """The GPUs of each task, by its place among the tasks of its host.

    Args:
      per_worker: the number for a task; None leaves all GPUs to each task.
      takes: by the task's index, whether it may have GPUs; the others see none.
    """

    def __init__(self, per_worker: int | None, takes: Sequence[bool]) -> None:
        self._per_worker = per_worker
        self._takes = takes
        self._places: dict[int, int] = {}  # of the tasks that have been started

    def of(self, task: int, neighbours: Sequence[int]) -> list[int] | None:
        """Returns the GPUs of a task that is about to start: places in the list of its host.

        Args:
          task: the task's index.
          neighbours: the other tasks of its host; once a task has started, its GPUs are taken.
        """
        if self._per_worker is None:
            return None
        if not self._takes[task]:
            return []
        taken = {self._places[other] for other in neighbours if other in self._places}
        place = next(place for place in range(len(taken) + 1) if place not in taken)
        self._places[task] = place
        return list(range(place * self._per_worker, (place + 1) * self._per_worker))
