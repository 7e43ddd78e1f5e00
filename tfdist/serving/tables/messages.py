"""The request of clients to the servers of tables."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class DescribeRequest:
    """A client asks for the tables of a server, and the data addresses of its partitions."""

    fingerprint: str
    wait: float


SERVED_TABLES = Service("ServedTables", 1, "a server of tables ('tfdist ps serve')")
DESCRIBE = SERVED_TABLES.method(DescribeRequest)
