"""The servers of the tables of one snapshot, in place of a job's cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.config import validation
from tfdist.config.cluster import Cluster
from tfdist.control import callers
from tfdist.errors import ClusterConfigError


@dataclasses.dataclass(frozen=True)
class ServerGroup(Cluster):
    """The servers of tables; this process is one of them, by its index among the workers."""

    @property
    def task_name(self) -> str:
        """This server's name in messages."""
        return f"table server {self.task_index}"

    @classmethod
    def of(cls, addresses: Sequence[str], index: int = 0) -> ServerGroup:
        """Returns the group of servers at these addresses.

        Args:
          addresses: "host:port" of each server's control plane, in the order of all processes.
          index: this server's.

        Raises:
          ClusterConfigError: an address is none, or occurs twice; or there is no server `index`.
        """
        if not addresses:
            raise ClusterConfigError("table servers: expected at least one address, received none")
        validation.check_tasks({"worker": tuple(addresses)}, "table servers")
        if not 0 <= index < len(addresses):
            raise ClusterConfigError(
                f"table servers: expected an index from 0 to {len(addresses) - 1}, received {index}"
            )
        return cls(workers=tuple(addresses), task_index=index)

    @property
    def fingerprint(self) -> str:
        """Identifies the addresses of all servers, in their order."""
        return callers.fingerprint(("table servers", *self.workers))
