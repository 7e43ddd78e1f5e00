"""The answers of `tfdist dashboard`, and its refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
from pathlib import Path

import pytest

from single.observe.live.live_states import state, telling
from tfdist.cli.main import main
from tfdist.control.signing import dashboard_token, metrics_token
from tfdist.observe.live import dashboard
from tfdist.observe.live.dashboard import Dashboard, JobView, describe
from tfdist.observe.live.records import ReportedState, TaskAnswer
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.targets import Targets

pytestmark = pytest.mark.timeout(60)
SECRET = b"a secret of sixteen"
TOKEN = dashboard_token(SECRET)
PAGE = Path(dashboard.__file__).parent / "page"


class View:
    """In place of a `JobView`."""

    def json(self):
        return b'{"of": "the job"}'


@contextlib.contextmanager
def serving(view=None):
    server = Dashboard(view or View(), TOKEN, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, path="/", method="GET", host=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=host is not None)
        if host is not None:
            connection.putheader("Host", host)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_the_token_opens_the_page_and_a_cookie_keeps_it_open():
    with serving() as server:
        assert server.url == f"http://127.0.0.1:{server.port}/?token={TOKEN}"
        status, body, headers = ask(server, f"/?token={TOKEN}")
        assert status == 200 and body == (PAGE / "index.html").read_bytes()
        cookie, *attributes = headers["Set-Cookie"].split("; ")
        assert attributes == ["HttpOnly", "SameSite=Strict", "Path=/"]
        assert TOKEN not in cookie and cookie.startswith(f"tfdist_{server.port}=")
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        for path, kind in (("/page.css", "text/css"), ("/job.json", "application/json")):
            status, body, headers = ask(server, path, Cookie=f"a=b; {cookie}")
            assert status == 200 and headers["Content-Type"].startswith(kind)
            assert headers["X-Content-Type-Options"] == "nosniff"
        assert body == b'{"of": "the job"}'
        assert ask(server, "/other", Cookie=cookie)[0] == 404
        assert ask(server, "/../dashboard.py", Cookie=cookie)[0] == 404


def test_others_learn_nothing():
    with serving() as server:
        cookies = ["", f"tfdist_{server.port}=", f"tfdist_{server.port}=\xe9", f"tfdist_1={TOKEN}"]
        for path in ("/", "/job.json", "/page.js", "/other", "/?token=", "/?token=x"):
            for headers in ({}, *({"Cookie": cookie} for cookie in cookies)):
                status, body, answered = ask(server, path, **headers)
                assert (status, body) == (403, b""), (path, headers)
                assert "Set-Cookie" not in answered and "tfdist" not in str(answered)


def test_another_token_of_the_job_is_none():
    with serving() as server:
        assert ask(server, f"/?token={metrics_token(SECRET)}")[0] == 403
        assert ask(server, f"/?{'&'.join(['a=b'] * 50)}&token={TOKEN}")[0] == 403


def test_only_get():
    with serving() as server:
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"):
            status, body, headers = ask(server, f"/?token={TOKEN}", method)
            assert status == 501 and body == b"" and "tfdist" not in str(headers), method


def test_names_that_were_led_here_are_refused():
    with serving() as server:
        here = f"127.0.0.1:{server.port}"
        for host in (here, "localhost:8000", "localhost", "[::1]:80", "10.0.0.7"):
            assert ask(server, f"/?token={TOKEN}", host=host)[0] == 200, host
        for host in (
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "127.0.0.1@evil.example",
            "[evil",
            "",
        ):
            assert ask(server, f"/?token={TOKEN}", host=host)[0] == 403, host


def test_every_file_of_the_page_is_served():
    names = {name for name, _ in dashboard._FILES.values()}
    assert names == {path.name for path in PAGE.iterdir()}


def test_the_page_uses_nothing_from_elsewhere_and_parses_no_html():
    for path in PAGE.iterdir():
        text = path.read_text()
        addresses = set(re.findall(r"https?://[^\s\"']+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
        parsers = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|srcdoc"
        found = re.findall(parsers, text)
        assert not found, path
        # The policy of the page would refuse these.
        assert "<script>" not in text and "style=" not in text, path


def event(**fields):
    return {
        "kind": "collective",
        "operation": "all_reduce",
        "name": "<img src=x onerror=alert(1)>",
        "detail": "float[4]",
        "bytes": 16,
        "failed": False,
        "submitted": 1.5,
        "started": 1.0,
        "ended": None,
        **fields,
    }


def test_what_the_page_gets():
    told = ReportedState.from_json(state(loss=[[1, 0.5], [2, None]], events=[event()]))
    early, late = (
        TaskAnswer("worker 0", "a:1", 10.0, told),
        TaskAnswer("worker 0", "a:1", 12.0, told),
    )
    other = TaskAnswer("worker 1", "a:2", 12.5, problem="does not listen")
    fields = json.loads(json.dumps(describe("job.json", [early, other], [late, other])))
    assert fields["loss"] == {"worker 0": [[1, 0.5], [2, None]]}
    (shown,) = fields["events"]["worker 0"]
    # The other answer came half a second later: at "now".
    assert (shown["submitted"], shown["started"], shown["ended"]) == (2.0, 1.5, None)
    assert [task["problem"] for task in fields["tasks"]] == ["", "does not listen"]
    assert fields["scripts"] == ["train.py"] and fields["straggler"] is None


def hostile_states():
    huge = state("worker 0")
    huge["metrics"] = [["tfdist_samples", [label], 1e308] for label in "ab"]
    labels = state("worker 0")
    labels["metrics"] = [["tfdist_wait_seconds", [], 1], ["tfdist_tasks", ["a"], 1]]
    name = "\x1b]0;x\x07<script>\ud800"
    text = state("worker 0", traffic={"__proto__": [1, 1], name: [10**18, 0]}, script=name)
    integer = state("worker 0", traffic={"worker 1": [10**400, 0]})
    negative = state("worker 0", events=[event(submitted=-1e17, ended=1e17)], memory=-(10**18))
    return {
        **{"huge": huge, "labels": labels, "text": text, "integer": integer},
        **{"negative": negative},
    }


@pytest.mark.parametrize("kind", hostile_states())
def test_a_hostile_task_is_shown_beside_the_others(kind, monkeypatch):
    monkeypatch.setattr(dashboard, "_FRESH", 0.0)
    hostile = hostile_states()[kind]
    good = state("worker 0")
    with telling(good, hostile) as first, telling(state("worker 1", steps=5)) as second:
        sampler = Sampler(Targets({"worker 0": first, "worker 1": second}, SECRET))
        try:
            with serving(JobView(sampler, "title")) as server:
                for _ in range(3):
                    status, body, _ = ask(server, f"/job.json?token={TOKEN}")
                    assert status == 200
                    tasks = json.loads(body, parse_constant=pytest.fail)["tasks"]
                    assert tasks[1]["steps"] == 5
        finally:
            sampler.close()


def test_what_cannot_be_shown_is_answered(caplog):
    class Broken:
        def json(self):
            raise RuntimeError("of the test")

    with serving(Broken()) as server:
        status, body, headers = ask(server, f"/job.json?token={TOKEN}")
        assert (status, body) == (500, b"") and "tfdist" not in str(headers.get("Server"))
    assert "RuntimeError: of the test" in caplog.text


def test_looks_only_as_often_as_necessary(monkeypatch):
    monkeypatch.setattr(dashboard, "_FRESH", 1000.0)
    with telling(state(steps=1), state(steps=2)) as address:
        sampler = Sampler(Targets({"worker 0": address}, SECRET))
        view = JobView(sampler, "title")
        first = view.json()
        assert view.json() == first
        monkeypatch.setattr(dashboard, "_FRESH", 0.0)
        second = json.loads(view.json())
        sampler.close()
    assert json.loads(first)["tasks"][0]["step_rate"] is None
    assert second["tasks"][0]["steps"] == 2 and second["tasks"][0]["step_rate"] > 0


def test_a_wrong_address_or_a_taken_port(capsys, monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", SECRET.decode())
    command = ["dashboard", "--targets", "127.0.0.1:1"]
    assert main([*command, "--host", "name.example"]) == 2
    assert "name.example" in capsys.readouterr().err
    with serving() as server:
        assert main([*command, "--port", str(server.port)]) == 2
        assert f"cannot listen on 127.0.0.1 port {server.port}" in capsys.readouterr().err
    assert main([*command, "--port", "65536"]) == 2
