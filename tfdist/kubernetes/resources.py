"""The resources of a pod."""

from __future__ import annotations

import dataclasses

from tfdist.kubernetes import checks

_CPU = r"[0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m"
_MEMORY = r"[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?"


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources that each pod of a role requests, and may use at most.

    Args:
      cpu: processors, such as "4" or "500m"; None leaves it to the namespace.
      memory: bytes, such as "8Gi"; None likewise.
    """

    cpu: str | None = None
    memory: str | None = None

    def check(self, options: str) -> None:
        """Checks that the values are quantities of Kubernetes.

        Args:
          options: the beginning of the options that they come from, such as "--ps-".

        Raises:
          ClusterConfigError: one is not.
        """
        if self.cpu is not None:
            checks.match(f"{options}cpu", self.cpu, _CPU, "processors such as 4 or 500m")
        if self.memory is not None:
            checks.match(f"{options}memory", self.memory, _MEMORY, "bytes such as 512Mi or 8Gi")


# Of a parameter server, unless others are given. A pod without requests is the first to be evicted,
# and a server then loses all changes since its last snapshot.
SERVER = Resources("2", "4Gi")
