"""The tables of a snapshot in the process that looks them up."""

from __future__ import annotations

import secrets

from tfdist.ops.ps.client import ParameterClient
from tfdist.serving.tables import publication
from tfdist.serving.tables.partitions import Partitions
from tfdist.serving.tables.publication import Publication

_CONNECT_WAIT = 10.0


class LocalTables:
    """All rows of a snapshot, in this process.

    Args:
      folder: the folder of the snapshot.

    Raises:
      CheckpointError: it has none.
      tf.errors.ResourceExhaustedError: the rows do not fit in memory.
    """

    def __init__(self, folder: str) -> None:
        self._partitions = Partitions(0, 1, 1)
        self._client = ParameterClient(0, 1, secrets.randbits(63), servers=1)
        try:
            self._partitions.load(publication.latest(folder))
            key = secrets.token_bytes(32)
            self._partitions.start({0: key})
            at = self._partitions.addresses[0]
            address = f"127.0.0.1:{at.port}"
            self._client.connect(0, address, key, at.incarnation, _CONNECT_WAIT)
        except BaseException:
            self.close()
            raise

    @property
    def client(self) -> ParameterClient:
        """The connection to the rows; `client.handle` names it to lookups."""
        return self._client

    @property
    def widths(self) -> dict[str, int]:
        """The width of each table's rows, by its name."""
        return self._partitions.widths

    @property
    def origin(self) -> str:
        """Describes the snapshot in messages."""
        served = self._partitions.publication
        assert served is not None
        return f"snapshot {served.number} in {served.root}"

    def follow(self, found: Publication) -> None:
        """Takes up a later snapshot; raises as `Partitions.update`."""
        served = self._partitions.publication
        if served is None or found.number > served.number:
            self._partitions.update(found)

    def close(self) -> None:
        """Frees the rows. May be called again."""
        self._client.close()
        self._partitions.close()
