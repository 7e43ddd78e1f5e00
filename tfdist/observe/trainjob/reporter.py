"""The thread that posts the status of a TrainJob, so that the training never waits for a server."""

from __future__ import annotations

import atexit
import http.client
import logging
import os
import re
import ssl
import threading
import time
import urllib.parse
from pathlib import Path

from tfdist.config.printing import printable_line
from tfdist.config.trainjob import StatusServer
from tfdist.observe.trainjob.status import Status

_log = logging.getLogger("tfdist")
# Seconds between two requests: the server serves all jobs of the cluster.
PERIOD = 5.0
# Seconds for a request, and for the last one at the end of the program.
_TIMEOUT = 5.0
_TOKEN = re.compile(r"[!-~]+")
# Bytes of a refusal that the log shows.
_SHOWN = 200


class Reporter:
    """Posts the newest status, at most once every `PERIOD` seconds.

    A status that cannot be posted is dropped, and the next one is tried as usual. The first failure
    is logged. The last status is posted at the end of the program.

    Args:
      server: receives the status.
      period: seconds between two requests.
    """

    def __init__(self, server: StatusServer, period: float = PERIOD) -> None:
        self._server = server
        self._period = period
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._newest: Status | None = None
        self._next_at = time.monotonic()
        self._has_failed = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="tfdist-trainjob", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def is_due(self) -> bool:
        """Whether a status would be posted at once."""
        return time.monotonic() >= self._next_at

    def report(self, status: Status) -> None:
        """Lets the thread post a status, which replaces an older one in the queue."""
        with self._changed:
            self._newest = status
            self._changed.notify()

    def close(self) -> None:
        """Posts the status that waits, for some seconds at most; may be called again.

        If the last request has failed, it is not tried again: the program ends at once.
        """
        if os.getpid() != self._pid:  # the thread belongs to the parent
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(_TIMEOUT)
        atexit.unregister(self.close)

    def _run(self) -> None:
        failed = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._is_closing)
                while not self._is_closing and not self.is_due():
                    self._changed.wait(self._next_at - time.monotonic())
                status, self._newest = self._newest, None
                if status is None or (self._is_closing and failed):
                    return
                self._next_at = time.monotonic() + self._period
            failed = not self._posted(status)

    def _posted(self, status: Status) -> bool:
        try:
            _post(self._server, status.request())
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._has_failed:
                self._has_failed = True
                _log.warning(
                    "the progress cannot be shown in the TrainJob's status: POST %s: %s. The "
                    "training continues; further failures are not logged",
                    printable_line(self._server.url),
                    printable_line(f"{type(error).__name__}: {error}"),
                )
            return False
        return True


def _post(server: StatusServer, body: bytes) -> None:
    """Posts a request. The files are read each time: token and certificate are renewed.

    Raises:
      OSError, ValueError, http.client.HTTPException: it has failed.
    """
    url = urllib.parse.urlsplit(server.url)
    if url.scheme != "https" or url.hostname is None:
        raise ValueError("expected an https URL, since the request carries a token")
    token = Path(server.token_file).read_text(encoding="ascii").strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"expected a token in {server.token_file}")
    context = ssl.create_default_context(cafile=server.ca_file)
    connection = http.client.HTTPSConnection(
        url.hostname, url.port, timeout=_TIMEOUT, context=context
    )
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", url.path or "/", body, headers)
        answer = connection.getresponse()
        if not 200 <= answer.status < 300:
            shown = answer.read(_SHOWN).decode(errors="replace")
            raise ValueError(f"expected status 200, received {answer.status}: {shown}")
    finally:
        connection.close()
