"""The limits of an elastic job: how many processes it needs, takes, and starts with.

This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import re

from tfdist.config.cluster import Cluster
from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError

# Rank 0 holds a call of each other worker while they form a generation, in a thread of its own, and
# a call names all workers, in at most 64 KiB.
MAX_WORKERS = 500


@dataclasses.dataclass(frozen=True)
class Elastic:
    """The limits of a job whose workers may die, leave and join.

    Args:
      min_workers: the least number of processes that train; with fewer, the job waits for more.
      max_workers: the largest number, 500 or less; None means 500.
      start_workers: the number that the job begins with; None means the number of training
        tasks in the cluster.

    Raises:
      ClusterConfigError: the numbers contradict each other.

    Example:
      >>> Elastic.from_text("2:8:4")
      Elastic(min_workers=2, max_workers=8, start_workers=4)
    """

    min_workers: int = 1
    max_workers: int | None = None
    start_workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_workers", "max_workers", "start_workers"):
            value = getattr(self, name)
            if value is None and name != "min_workers":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ClusterConfigError(
                    f"Elastic: expected {name} to be a positive integer, received {show(value)}"
                )
            if value > MAX_WORKERS:
                raise ClusterConfigError(
                    f"Elastic: expected {name} to be at most {MAX_WORKERS}, the limit of elastic "
                    f"training, received {value}"
                )
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ClusterConfigError(
                f"Elastic: expected max_workers to be at least min_workers = {self.min_workers}, "
                f"received {self.max_workers}"
            )
        if self.start_workers is not None:
            self._check_start(self.start_workers, "start_workers")

    @classmethod
    def from_text(cls, text: str, source: str = "Elastic") -> Elastic:
        """Returns the limits in "min:max" or "min:max:start".

        Args:
          text: for instance "2:8" or "2:8:4".
          source: the origin of the text in errors.

        Raises:
          ClusterConfigError: the text has another form, or the numbers contradict each other.
        """
        found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})(?::([0-9]{1,9}))?", text.strip())
        if not found:
            raise ClusterConfigError(
                f'{source}: expected "min:max" or "min:max:start", such as 2:8 or 2:8:4, received '
                f"{show(text)}"
            )
        min_workers, max_workers, start = found.groups()
        try:
            return cls(int(min_workers), int(max_workers), None if start is None else int(start))
        except ClusterConfigError as error:
            # The text has no arguments of Python.
            told = str(error).removeprefix("Elastic: ")
            told = re.sub("(min|max|start)_workers", lambda name: name[1].upper(), told)
            raise ClusterConfigError(f"{source} {text.strip()}: {told}") from None

    def start(self, cluster: Cluster) -> int:
        """Returns the number of processes that the job begins with.

        Args:
          cluster: the job as this process knows it.

        Raises:
          ClusterConfigError: the cluster has fewer training tasks than `start_workers`, or their
            number, which is the default, is outside the limits.
        """
        if self.start_workers is None:
            self._check_start(cluster.world_size, "the number of training tasks in the cluster")
            return cluster.world_size
        if self.start_workers > cluster.world_size:
            raise ClusterConfigError(
                f"Elastic: expected at least start_workers = {self.start_workers} training tasks "
                f"in the cluster, received {cluster.world_size}"
            )
        return self.start_workers

    def _check_start(self, start: int, what: str) -> None:
        limit = self.max_workers or MAX_WORKERS
        if not self.min_workers <= start <= limit:
            raise ClusterConfigError(
                f"Elastic: expected {what} to be {self.min_workers} to {limit}, received {start}"
            )
