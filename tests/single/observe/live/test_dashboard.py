"""The answers of `tfdist dashboard`, and its refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
from pathlib import Path

import pytest

from single.observe.live.live_states import fit, state, telling
from tfdist.cli.main import main
from tfdist.control.signing import dashboard_token, metrics_token
from tfdist.observe.live import dashboard
from tfdist.observe.live.dashboard import Dashboard, JobView, describe
from tfdist.observe.live.job_record import JobEnd, JobRecord
from tfdist.observe.live.records import ReportedState, TaskAnswer
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.targets import Targets
from tfdist.observe.metrics import last_state

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
    curves = {"loss": [[1, 0.5], [2, None]], "val_loss": [[2, 0.75]]}
    told = ReportedState.from_json(state(fit=fit(), curves=curves, events=[event()]))
    early, late = (
        TaskAnswer("worker 0", "a:1", 10.0, told),
        TaskAnswer("worker 0", "a:1", 12.0, told),
    )
    other = TaskAnswer("worker 1", "a:2", 12.5, problem="does not listen")
    fields = json.loads(json.dumps(describe("job.json", [early, other], [late, other])))
    assert fields["fit"] == {"task": "worker 0", **fit(), "curves": curves}
    assert fields["end"] is None
    (shown,) = fields["events"]["worker 0"]
    assert (shown["submitted"], shown["started"], shown["ended"]) == (1.5, 1.0, None)
    assert [task["problem"] for task in fields["tasks"]] == ["", "does not listen"]
    assert fields["scripts"] == ["train.py"] and fields["straggler"] is None


def described(*states, end=None):
    """The page's object for tasks that answer, each 0.5 s after the task before it."""
    answers = [
        TaskAnswer(one["task"], "a:1", 10 + number / 2, ReportedState.from_json(one))
        for number, one in enumerate(states)
    ]
    return json.loads(json.dumps(describe("job.json", answers, answers, end)))


def test_the_times_of_several_tasks_count_from_the_latest_answer():
    fields = described(state("worker 0", events=[event()]), state("worker 1", events=[event()]))
    ((first,), (second,)) = (fields["events"][f"worker {rank}"] for rank in range(2))
    assert (first["submitted"], second["submitted"]) == (2.0, 1.5)


def test_the_first_task_that_trains_stands_for_the_job():
    workers = [state(f"worker {rank}", fit=fit(epoch=rank)) for rank in (1, 2)]
    assert described(state("ps 0"), *workers)["fit"]["task"] == "worker 1"
    assert described(*workers, state("chief", fit=fit()))["fit"]["task"] == "chief"
    assert described(state("ps 0"))["fit"] is None


@pytest.mark.parametrize(
    ("tasks", "window"),
    [
        # A job that has just begun, and a step that is under way for long.
        ([([3.0, 1.0], 10.0)], 3.0),
        ([([30.0], 10.0)], 10.0),
        # 400 events of 1.2 s: the seconds before them are not idle.
        ([([1.2, 0.1], 1.2), ([9.0, 0.1], 10.0)], 1.2),
        # A server that does little cuts nothing.
        ([([0.5], 0.5), ([], 10.0)], 0.5),
        ([([], 10.0)], 10.0),
        ([([1e-6], 10.0)], 0.01),
    ],
)
def test_the_timeline_is_full(tasks, window):
    states = []
    for rank, (ages, since) in enumerate(tasks):
        events = [event(submitted=age, started=age, ended=age / 2) for age in ages]
        events = [one | {"ended": None} if one["submitted"] > 10 else one for one in events]
        states.append(state(f"worker {rank}", events=events, since=since))
    # All answer at the same time.
    answers = [TaskAnswer(s["task"], "a:1", 5.0, ReportedState.from_json(s)) for s in states]
    assert describe("job.json", answers, answers)["window"] == window


def test_after_the_end_the_last_state_stays(tmp_path, monkeypatch):
    """Worker 0 leaves its state, worker 1 is killed, and nothing was seen of worker 2."""
    monkeypatch.setattr(dashboard, "_FRESH", 0.0)
    ends = []
    names = [f"worker {rank}" for rank in range(3)]
    record = JobRecord(names, tmp_path, lambda: ends[0] if ends else None)
    with telling(state("worker 0", steps=5)) as one, telling(state("worker 1", steps=6)) as other:
        addresses = {"worker 0": one, "worker 1": other, "worker 2": "127.0.0.1:1"}
        sampler = Sampler(Targets(addresses, SECRET))
        view = JobView(sampler, "title", record)
        fields = json.loads(view.json())
        sampler.close()
    assert fields["end"] is None
    last = state("worker 0", steps=8, fit=fit(has_ended=True), curves={"val_loss": [[8, 0.5]]})
    last_state.leave(tmp_path, "worker 0", lambda: last)
    ends.append(JobEnd(1e9, 137, {"worker 0": 0, "worker 1": 137}))
    fields = json.loads(view.json())
    assert fields["end"] == {"at": 1e9, "code": 137, "exits": {"worker 0": 0, "worker 1": 137}}
    assert [task["steps"] for task in fields["tasks"]] == [8, 6, None]
    assert {task["problem"] for task in fields["tasks"]} == {"has ended"}
    assert fields["fit"]["has_ended"] and fields["fit"]["curves"] == {"val_loss": [[8, 0.5]]}
    # Nothing asks the tasks, and nothing changes any more.
    ends[0] = JobEnd(2e9, 0, {})
    assert json.loads(view.json()) == fields


def test_looks_also_without_a_page(monkeypatch):
    monkeypatch.setattr(dashboard, "_FRESH", 0.0)
    monkeypatch.setattr(dashboard, "_PERIOD", 0.01)
    looks = []

    def end():
        looks.append(1)
        if len(looks) == 2:
            raise RuntimeError("of the test")
        return JobEnd(1e9, 0, {}) if len(looks) == 4 else None

    with telling(state(steps=5)) as address:
        sampler = Sampler(Targets({"worker 0": address}, SECRET))
        view = JobView(sampler, "title", JobRecord(["worker 0"], None, end))
        view.follow(threading.Event())
        sampler.close()
    assert len(looks) == 4 and json.loads(view.json())["tasks"][0]["steps"] == 5


def hostile_states():
    huge = state("worker 0")
    huge["metrics"] = [["tfdist_samples", [label], 1e308] for label in "ab"]
    labels = state("worker 0")
    labels["metrics"] = [["tfdist_wait_seconds", [], 1], ["tfdist_tasks", ["a"], 1]]
    name = "\x1b]0;x\x07<script>\ud800"
    text = state("worker 0", traffic={"__proto__": [1, 1], name: [10**18, 0]}, script=name)
    integer = state("worker 0", traffic={"worker 1": [10**400, 0]})
    negative = state("worker 0", events=[event(submitted=-1e17, ended=1e17)], memory=-(10**18))
    huge_fit = fit(epoch=-(2**52), epochs=0, batches=0, done=-1.0, remaining=1e17)
    odd_fit = state("worker 0", fit=huge_fit, cpu=-1e17, since=-1.0, curves={"__proto__": []})
    return {
        **{"huge": huge, "labels": labels, "text": text, "integer": integer},
        **{"negative": negative, "odd fit": odd_fit},
    }


@pytest.mark.parametrize("kind", hostile_states())
def test_a_hostile_task_is_shown_beside_the_others(kind, monkeypatch):
    monkeypatch.setattr(dashboard, "_FRESH", 0.0)
    hostile = hostile_states()[kind]
    good = state("worker 0")
    with telling(good, hostile) as first, telling(state("worker 1", steps=5)) as second:
        sampler = Sampler(Targets({"worker 0": first, "worker 1": second}, SECRET))
        try:
            with serving(JobView(sampler, "title", JobRecord())) as server:
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
        view = JobView(sampler, "title", JobRecord())
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
