"""Connections to servers of tables that a benchmark has started."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence

import tensorflow as tf

from tfdist.config.settings import Settings
from tfdist.serving.tables.connection import TableConnection

# Servers of the largest tables read for a minute.
_PATIENCE = 900.0  # seconds
_ONE_TRY = 2.0


def connected(
    addresses: Sequence[str], processes: Sequence[subprocess.Popen], patience: float = _PATIENCE
) -> TableConnection:
    """Connects once all servers have read their tables.

    Args:
      addresses: "host:port" of each server.
      processes: the servers, in the same order.
      patience: the longest time (s) for that.

    Raises:
      RuntimeError: a server has ended.
      TimeoutError: they do not answer in time.
    """
    settings = Settings.from_environment()
    end = time.monotonic() + patience
    answering = 0
    while time.monotonic() < end:
        for address, process in zip(addresses, processes, strict=True):
            if (code := process.poll()) is not None:
                raise RuntimeError(f"the server of tables at {address} has ended with {code}")
        with contextlib.suppress(tf.errors.UnavailableError):
            connection = TableConnection(addresses, settings, timeout=_ONE_TRY)
            answering = len(connection.answering)
            if answering == len(addresses):
                return connection
            connection.close()
    raise TimeoutError(
        f"expected {len(addresses)} servers of tables to answer within {patience:g} s, "
        f"received answers of {answering}"
    )
