"""`tfdist dashboard`: a web page about a running job, or about the last state of an ended one.

The server reads the job when the page asks, and changes nothing. It also looks once in a while
without a page, so that it knows the last answer of a task that is killed. Its requirements for a
request:

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
from tfdist.config.settings import Settings
from tfdist.config.tls import Tls
from tfdist.control.signing import dashboard_token
from tfdist.errors import ClusterConfigError
from tfdist.observe.live import targets
from tfdist.observe.live.job_record import JobEnd, JobRecord
from tfdist.observe.live.last_states import LastStates
from tfdist.observe.live.records import (
    EVENTS_SECONDS,
    ReportedState,
    TaskAnswer,
    activity,
    first_that_trains,
)
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.targets import Targets
from tfdist.observe.metrics.http_server import BoundedHandler, BoundedServer, address_of

_log = logging.getLogger("tfdist.observe.live")
# Seconds between two looks that no page asks for.
_PERIOD = 2.0
# How long a Ctrl-C may be unseen that comes just before the server waits, or in another thread (s).
_INTERRUPT_PERIOD = 0.5
# Seconds that the timeline covers at least.
_SHORTEST = 0.01
# Answers that are younger serve several pages at once (s).
_FRESH = 0.8
# After a longer pause rates begin again: they are of the last seconds, not of the pause.
_STALE = 10.0
_TIMEOUT = 2.0
_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("page.js", "dom.js", "axis.js", "tasks.js", "graph.js", "curves.js", "timeline.js")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
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
      sampler: asks the tasks; `None` if the job has ended.
      title: the job's name on the page.
      record: the launcher's notes of the job.
    """

    def __init__(self, sampler: Sampler | None, title: str, record: JobRecord) -> None:
        self._sampler = sampler
        self._title = title
        self._record = record
        self._last = LastStates(record.states)
        self._lock = threading.Lock()
        self._before: Sequence[TaskAnswer] = ()
        self._looked_at = float("-inf")
        self._text = b""
        self._end: JobEnd | None = None

    def json(self) -> bytes:
        """Returns what the page shows, as JSON."""
        with self._lock:
            # Nothing of an ended job changes.
            if self._end is None and time.monotonic() - self._looked_at >= _FRESH:
                self._look()
            return self._text

    def _look(self) -> None:
        # Before the tasks: an ended job has no task that could still write its last state.
        end = self._record.end()
        after = self._last.complete(self._answers(end))
        pause = time.monotonic() - self._looked_at
        before = self._before if pause < _STALE and len(self._before) == len(after) else after
        fields = describe(self._title, before, after, end)
        self._text = json.dumps(fields, allow_nan=False).encode()
        self._before, self._looked_at, self._end = after, time.monotonic(), end

    def _answers(self, end: JobEnd | None) -> Sequence[TaskAnswer]:
        if end is None:
            assert self._sampler is not None  # the job runs
            return self._sampler.sample(EVENTS_SECONDS)
        names = [answer.name for answer in self._before] or self._record.tasks
        now = time.monotonic()
        return [TaskAnswer(name, "", now, problem="has ended") for name in names]

    def follow(self, stopped: threading.Event) -> None:
        """Looks once in a while, until the job or this process ends."""
        while self._end is None and not stopped.wait(_PERIOD):
            try:
                self.json()
            except Exception:  # the next look may succeed
                _log.exception("the job cannot be looked at")


def describe(
    title: str,
    before: Sequence[TaskAnswer],
    after: Sequence[TaskAnswer],
    end: JobEnd | None = None,
) -> dict[str, object]:
    """Returns what the page shows, as an object for JSON.

    Args:
      title: the job's name on the page.
      before, after: as for `records.activity`.
      end: of the job; `None` while it runs.
    """
    job = activity(before, after)
    states = [(answer, answer.state) for answer in after if answer.state is not None]
    now = max((answer.at for answer, _ in states), default=0.0)
    events = {
        state.task: [_aged(dataclasses.asdict(e), now - answer.at) for e in state.events]
        for answer, state in states
    }
    trains = first_that_trains([state for _, state in states])
    return {
        "title": title,
        "scripts": sorted({state.script for _, state in states}),
        "seconds": job.seconds,
        "window": _window(events, {s.task: s.since + now - a.at for a, s in states}),
        "tasks": [dataclasses.asdict(task) for task in job.tasks],
        "queues": [dataclasses.asdict(queue) for queue in job.queues],
        "waited_for": dict(job.waited_for),
        "straggler": job.straggler,
        "fit": None if trains is None else _fit_of(trains),
        "events": events,
        "end": None if end is None else dataclasses.asdict(end),
    }


def _fit_of(state: ReportedState) -> dict[str, object]:
    assert state.fit is not None
    return {"task": state.task, **dataclasses.asdict(state.fit), "curves": state.curves}


def _window(events: Mapping[str, list[dict[str, Any]]], since: Mapping[str, float]) -> float:
    """Returns how many seconds the timeline covers, so that it is full of the events it has.

    Args:
      events: of each task.
      since: for how many seconds each task tells all of them. A busy task tells few seconds: before
        them it would look idle.
    """
    busy = [name for name, own in events.items() if any(_is_within(e, EVENTS_SECONDS) for e in own)]
    longest = min([EVENTS_SECONDS, *(since[name] for name in busy)])
    begins = [e["submitted"] for own in events.values() for e in own if _is_within(e, longest)]
    return max(_SHORTEST, min(longest, max(begins, default=longest)))


def _is_within(event: Mapping[str, Any], seconds: float) -> bool:
    return event["ended"] is None or event["ended"] < seconds


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
      tls: the origin of the certificate with which it serves other hosts; None does not encrypt.

    Attributes:
      port: the port.

    Raises:
      OSError: the port cannot be used.
      ClusterConfigError: the certificate cannot be used.
    """

    def __init__(
        self, view: JobView, token: str, host: str, port: int, tls: Tls | None = None
    ) -> None:
        self.view = view
        self.token = token
        # Of this process alone, since browsers send cookies to all ports of a host.
        self.session = secrets.token_urlsafe(32)
        # Browsers trust a loopback address, but not a job's own authority.
        self._tls = None if ipaddress.ip_address(host).is_loopback else tls
        super().__init__(host, port, _Handler, tls=self._tls)
        self._host = host
        self.port: int = self.server_address[1]
        self.cookie = f"tfdist_{self.port}"

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        name = f"[{self._host}]" if ":" in self._host else self._host
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{name}:{self.port}/?token={self.token}"


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


def _targets(job: Path | None, addresses: str | None, record: JobRecord) -> Targets | None:
    """Returns the tasks to ask; `None` if the job has ended.

    Raises:
      ClusterConfigError: as for `targets.find`.
    """
    try:
        return None if record.end() is not None else targets.find(job, addresses)
    except ClusterConfigError:
        # The job file is gone with the job, which may have ended just now.
        if record.end() is None:
            raise
        return None


def run(job: Path | None, addresses: str | None, host: str, port: int, record: JobRecord) -> int:
    """Serves the page until Ctrl-C.

    Args:
      job, addresses: as for `targets.find`.
      host: the numeric address to listen on.
      port: the port, or 0 for a free one.
      record: the launcher's notes of the job.

    Returns:
      The exit code.
    """
    try:
        ipaddress.ip_address(host)
        found = _targets(job, addresses, record)
        tls = Settings.from_environment().tls if found is None else found.tls
        sampler = None if found is None else Sampler(found, _TIMEOUT)
    except (ClusterConfigError, ValueError) as error:
        print(f"tfdist dashboard: error: {printable(str(error))}", file=sys.stderr)
        return 2
    tasks = record.tasks if found is None else found.addresses
    view = JobView(sampler, str(job) if job is not None else f"{len(tasks)} tasks", record)
    token = secrets.token_urlsafe(32) if found is None else dashboard_token(found.secret)
    try:
        server = Dashboard(view, token, host, port, tls)
    except (OSError, OverflowError) as error:
        print(
            f"tfdist dashboard: error: cannot listen on {host} port {port}: {error}",
            file=sys.stderr,
        )
        return 2
    print(f"tfdist dashboard: {server.url}", flush=True)
    stopped = threading.Event()
    follower = threading.Thread(target=view.follow, args=(stopped,), daemon=True)
    follower.start()
    try:
        server.serve_forever(poll_interval=_INTERRUPT_PERIOD)
    except KeyboardInterrupt:
        return 130
    finally:
        stopped.set()
        server.server_close()
        if sampler is not None:
            sampler.close()
    return 0
