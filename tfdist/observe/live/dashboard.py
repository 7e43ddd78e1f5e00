"""`tfdist dashboard`: a web page about a running job.

The server reads the job when the page asks, and changes nothing. Its requirements for a request:

- a host name that is an address, or "localhost": the name of a page elsewhere that was made to lead
  here ("DNS rebinding") is refused;
- the token of the printed address, which every job has another of; the page then gets a cookie.

A client that has neither learns only that a server listens.
"""

from __future__ import annotations

import dataclasses
import hmac
import http.cookies
import ipaddress
import json
import logging
import secrets
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tfdist.config.printing import printable
from tfdist.control.signing import dashboard_token
from tfdist.errors import ClusterConfigError
from tfdist.observe.live import targets
from tfdist.observe.live.records import TaskAnswer, activity
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.metrics.http_server import BoundedHandler, BoundedServer, address_of

_log = logging.getLogger("tfdist.observe.live")
WINDOW = 10.0  # seconds of events on the page
# Answers that are younger serve several pages at once (s).
_FRESH = 0.8
# After a longer pause rates begin again: they are of the last seconds, not of the pause.
_STALE = 10.0
_TIMEOUT = 2.0
_PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{
        f"/{name}": (name, "text/javascript; charset=utf-8")
        for name in ("page.js", "dom.js", "tasks.js", "graph.js", "loss.js", "timeline.js")
    },
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class JobView:
    """Looks at a job when a page asks, and keeps the last look for rates.

    Args:
      sampler: asks the tasks.
      title: the job's name on the page.
    """

    def __init__(self, sampler: Sampler, title: str) -> None:
        self._sampler = sampler
        self._title = title
        self._lock = threading.Lock()
        self._before: Sequence[TaskAnswer] = ()
        self._looked_at = float("-inf")
        self._text = b""

    def json(self) -> bytes:
        """Returns what the page shows, as JSON."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _FRESH:
                self._look()
            return self._text

    def _look(self) -> None:
        after = self._sampler.sample(WINDOW)
        pause = time.monotonic() - self._looked_at
        before = self._before if pause < _STALE else after
        fields = describe(self._title, before, after)
        self._text = json.dumps(fields, allow_nan=False).encode()
        self._before, self._looked_at = after, time.monotonic()


def describe(
    title: str, before: Sequence[TaskAnswer], after: Sequence[TaskAnswer]
) -> dict[str, object]:
    """Returns what the page shows, as an object for JSON.

    Args:
      title: the job's name on the page.
      before, after: as for `records.activity`.
    """
    job = activity(before, after)
    now = max(answer.at for answer in after)
    states = [(answer, answer.state) for answer in after if answer.state is not None]
    return {
        "title": title,
        "scripts": sorted({state.script for _, state in states}),
        "seconds": job.seconds,
        "window": WINDOW,
        "tasks": [dataclasses.asdict(task) for task in job.tasks],
        "queues": [dataclasses.asdict(queue) for queue in job.queues],
        "waited_for": dict(job.waited_for),
        "straggler": job.straggler,
        "loss": {state.task: state.loss for _, state in states if state.loss},
        "events": {
            state.task: [_aged(dataclasses.asdict(e), now - answer.at) for e in state.events]
            for answer, state in states
        },
    }


def _aged(event: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Counts an event's times from the latest answer: the others are older by some `seconds`."""
    for name in ("submitted", "started", "ended"):
        if event[name] is not None:
            event[name] += seconds
    return event


class Dashboard(BoundedServer):
    """The server of the page.

    Args:
      view: the job.
      token: the token that a request must carry.
      host: the numeric address to listen on.
      port: the port, or 0 for a free one.

    Attributes:
      port: the port.

    Raises:
      OSError: the port cannot be used.
    """

    def __init__(self, view: JobView, token: str, host: str, port: int) -> None:
        self.view = view
        self.token = token
        # Of this process alone, since browsers send cookies to all ports of a host.
        self.session = secrets.token_urlsafe(32)
        super().__init__(host, port, _Handler)
        self._host = host
        self.port: int = self.server_address[1]
        self.cookie = f"tfdist_{self.port}"

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        name = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{name}:{self.port}/?token={self.token}"


class _Handler(BoundedHandler):
    server: Dashboard

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        by_token = _same(_token_of(query), self.server.token)
        if address_of(self.asked_host) is None or not (by_token or self._has_cookie()):
            self.answer(HTTPStatus.FORBIDDEN, b"", headers=_HEADERS)
            return
        headers = dict(_HEADERS)
        if by_token:
            headers["Set-Cookie"] = (
                f"{self.server.cookie}={self.server.session}; HttpOnly; SameSite=Strict; Path=/"
            )
        if path == "/job.json":
            self._answer_with_job(headers)
        elif path in _FILES:
            name, kind = _FILES[path]
            self.answer(HTTPStatus.OK, (_PAGE / name).read_bytes(), kind, headers)
        else:
            self.answer(HTTPStatus.NOT_FOUND, b"", headers=headers)

    def _answer_with_job(self, headers: Mapping[str, str]) -> None:
        try:
            text = self.server.view.json()
        except Exception:  # the next look may succeed
            _log.exception("the job cannot be shown")
            self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"", headers=headers)
        else:
            self.answer(HTTPStatus.OK, text, "application/json", headers)

    def _has_cookie(self) -> bool:
        try:
            cookies = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        except http.cookies.CookieError:
            return False
        morsel = cookies.get(self.server.cookie)
        return morsel is not None and _same(morsel.value, self.server.session)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers a request that is none, or another method than GET, without a word."""
        self.close_connection = True
        self.answer(HTTPStatus(code), b"", headers=_HEADERS)

    def version_string(self) -> str:
        return "-"


def _token_of(query: str) -> str:
    try:
        return urllib.parse.parse_qs(query, max_num_fields=8).get("token", [""])[0]
    except ValueError:
        return ""


def _same(given: str, expected: str) -> bool:
    # Bytes, because compare_digest refuses text that is not ASCII.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def run(job: Path | None, addresses: str | None, host: str, port: int) -> int:
    """Serves the page until Ctrl-C.

    Args:
      job, addresses: as for `targets.find`.
      host: the numeric address to listen on.
      port: the port, or 0 for a free one.

    Returns:
      The exit code.
    """
    try:
        found = targets.find(job, addresses)
        ipaddress.ip_address(host)
    except (ClusterConfigError, ValueError) as error:
        print(f"tfdist dashboard: error: {printable(str(error))}", file=sys.stderr)
        return 2
    sampler = Sampler(found, _TIMEOUT)
    title = str(job) if job is not None else f"{len(found.addresses)} tasks"
    try:
        server = Dashboard(JobView(sampler, title), dashboard_token(found.secret), host, port)
    except (OSError, OverflowError) as error:
        print(
            f"tfdist dashboard: error: cannot listen on {host} port {port}: {error}",
            file=sys.stderr,
        )
        return 2
    print(f"tfdist dashboard: {server.url}", flush=True)
    try:
        server.serve_forever(poll_interval=60)
    except KeyboardInterrupt:
        return 130
    finally:
        server.server_close()
        sampler.close()
    return 0
