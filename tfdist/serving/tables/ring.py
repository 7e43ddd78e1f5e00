"""Which servers hold the copies of each partition.

    servers   0     1     2          replicas=2: partition p is on servers p and p + 1
    holds     0 2   1 0   2 1

Without server 1, partition 1 is on server 2 and partition 0 on server 0: every partition outlives
any one server. A server holds `replicas` partitions.
"""

from __future__ import annotations


def holders(partition: int, servers: int, replicas: int) -> list[int]:
    """Returns the servers of a partition, the first choice of clients first."""
    return [(partition + copy) % servers for copy in range(replicas)]


def partitions_of(server: int, servers: int, replicas: int) -> list[int]:
    """Returns the partitions that a server holds, its own first."""
    return [(server - copy) % servers for copy in range(replicas)]
