"""Which workers' steps wait for which others', on all parameter servers of a job.

A worker waits for others in a pull or a read on any server, and in a reduction on one server. The
server of the epoch rounds asks the other servers. The workers that a worker waits for are a set of
ranks: an integer in which bit r stands for rank r.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.errors import TfdistError
from tfdist.ps import messages

_log = logging.getLogger("tfdist.ps")


class StepWaits:
    """The waits of one server, combined with the other servers' waits.

    Args:
      cluster: the job; this process is one of its `ps` tasks.
      settings: the secret.
      fingerprint: the job's fingerprint, which the other servers check.
      own: returns this server's waits, a set for each worker.
    """

    def __init__(
        self, cluster: Cluster, settings: Settings, fingerprint: str, own: Callable[[], list[int]]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._fingerprint = fingerprint
        self._own = own
        self._others: dict[str, ControlClient] | None = None
        self._warned: set[str] = set()

    def ask(self) -> list[int]:
        """Returns, for each worker, the set of workers for which its step waits on any server.

        A server that does not answer adds nothing; the log says so once until it answers again.
        Not thread-safe.
        """
        waits = self._own()
        if self._others is None:
            self._others = self._connect()
        for name, control in self._others.items():
            try:
                received = self._query(control, len(waits))
            except (UnreachableError, TfdistError, ValueError) as error:
                self._warn(name, error)
            else:
                self._warned.discard(name)
                waits = [mine | others for mine, others in zip(waits, received, strict=True)]
        return waits

    def close(self) -> None:
        """Closes the connections; may be called again."""
        for control in (self._others or {}).values():
            control.close()

    def _connect(self) -> dict[str, ControlClient]:
        clients, settings = {}, self._settings
        for server, address in enumerate(self._cluster.ps):
            if server != self._cluster.task_index:
                name = f"ps {server} at {address}"
                clients[name] = ControlClient(
                    self._cluster, settings.secret, address, name, settings.tls
                )
        return clients

    def _query(self, control: ControlClient, workers: int) -> list[int]:
        request = messages.WaitsRequest(fingerprint=self._fingerprint, wait=0.0)
        answer = control.call(messages.WAITS, request, 0.0, patient=False)
        return decoded(answer, workers)

    def _warn(self, name: str, error: Exception) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "%s: %s does not say which steps wait there for another worker's, so workers that "
                "have ended an epoch may wait for epoch_timeout: %s",
                self._cluster.task_name,
                name,
                error,
            )


def encoded(waits: list[int]) -> dict[str, object]:
    """Returns the answer that contains each worker's set."""
    return {"status": "waits", "waits": [f"{others:x}" for others in waits]}


def decoded(answer: dict[str, object], workers: int) -> list[int]:
    """Returns the sets of `workers` workers in an answer of `encoded`.

    Raises:
      ValueError: the answer is invalid.
    """
    if answer.get("status") == "waiting":  # no worker has attached to that server yet
        return [0] * workers
    waits = answer.get("waits")
    if (
        not isinstance(waits, list)
        or len(waits) != workers
        or not all(isinstance(others, str) for others in waits)
    ):
        raise ValueError(f"expected sets of {workers} workers, received {str(answer)[:80]}")
    return [int(others, 16) for others in waits]
