"""The dashboard in a browser: its contents, and its defence against hostile names."""

from __future__ import annotations

import contextlib
import functools
import html.parser
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from single.observe.live.live_states import serving, state
from tfdist.observe.live.dashboard import Dashboard, JobView
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.targets import Targets

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("chromium") is None,
        reason="Chromium is not installed: apt-get install chromium",
    ),
    # It needs a browser.
    pytest.mark.long(covered_by="single/observe/live/test_dashboard.py"),
]
TOKEN = "the-token-of-the-test"
# As HTML, as an attribute, as a script, and as an entity.
OWNED = "document.title='owned'"
HOSTILE = f'<img src=x onerror="{OWNED}"> \'"><script>{OWNED}</script> &lt;b'


def event(kind, operation, name, begin, start, end, **fields):
    return {
        "kind": kind,
        "operation": operation,
        "name": name,
        "detail": "float[1000]",
        "bytes": 4000,
        "failed": False,
        "submitted": begin,
        "started": start,
        "ended": end,
        **fields,
    }


def told(rank, seconds, name="gradients"):
    """The report of worker `rank` of three after some seconds; worker 2 is late."""
    steps = int(10 * seconds)
    peers = {f"worker {peer}": (steps * 4000, steps * 4000) for peer in range(3) if peer != rank}
    return state(
        f"worker {rank}",
        steps=steps,
        waits={"worker 2": 0.6 * seconds} if rank != 2 else {"worker 0": 0.0},
        traffic=peers,
        loss=[[step, 2.0 / step if step % 7 else None] for step in range(1, 60)],
        events=[
            event("span", "", f"step {age}", age / 2, age / 2, age / 2 - 0.4)
            for age in range(19, 0, -1)
        ]
        + [
            event("collective", "all_reduce", name, age / 2, age / 2 - 0.2, age / 2 - 0.3)
            for age in range(19, 1, -1)
        ]
        + [
            event("request", "pull", name, 1.0, None, None),
            event("collective", "a", "b", 3, 2, 1, failed=True),
        ],
    )


@contextlib.contextmanager
def dashboard(*tasks) -> Iterator[Dashboard]:
    """Serves the page of a job; each task is called for its state with the seconds since now."""
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        addresses = []
        for task in tasks:

            def answer(path, authorization, task=task):
                return 200, json.dumps(task(time.monotonic() - began)).encode()

            addresses.append(stack.enter_context(serving(answer)))
        # As with --targets: the tasks themselves tell their names.
        targets = Targets({address: address for address in addresses}, b"a secret of sixteen")
        sampler = Sampler(targets)
        stack.callback(sampler.close)
        server = Dashboard(JobView(sampler, "job.json"), TOKEN, "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        stack.callback(server.server_close)
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        # Rates need a look before the page's.
        urllib.request.urlopen(server.url.replace("/?", "/job.json?"), timeout=20).close()
        time.sleep(1.0)
        yield server


def browse(url, folder, *options):
    """Opens a page; returns its elements as HTML, and what its console says."""
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            f"--user-data-dir={folder}/profile",
            *("--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=3000"),
            *options,
            url,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


class Elements(html.parser.HTMLParser):
    """Collects the names of elements, their attributes, and the text by the id of its parent."""

    def __init__(self, text):
        super().__init__()
        self.names = []
        self.attributes = {}
        self.texts = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value)

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def test_shows_the_job(tmp_path):
    workers = [functools.partial(told, rank) for rank in range(3)]
    with dashboard(*workers) as server:
        text, console = browse(server.url, tmp_path, "--dump-dom")
    page = Elements(text)
    assert not console, console
    assert "worker 2 is late: the others wait for it, 1" in page.text
    assert "3 of 3" in page.text and "Looks every second." in page.text
    assert page.text.count("worker 2 (late)") == 1
    # Six directions between three workers, a bar for each event, and the curve.
    assert page.text.count("/s") > 6 and "worker 0 to worker 2" in page.text
    classes = [value for value in page.attributes["class"] if value]
    assert classes.count("edge") == 6
    assert sum(one.startswith("collective") for one in classes) >= 3 * 18
    assert "loss" in classes and "failed" in classes
    assert "4.0 KB: " in page.text and "not over yet" in page.text


def test_hostile_names(tmp_path):
    def hostile(seconds):
        one = told(0, seconds, HOSTILE)
        one |= {"task": HOSTILE, "host": HOSTILE, "script": HOSTILE}
        one["traffic"] = {HOSTILE: (int(1000 * seconds), 5), "__proto__": (int(500 * seconds), 5)}
        one["metrics"] += [
            ["tfdist_wait_seconds", [HOSTILE], seconds],
            ["tfdist_tasks", [HOSTILE, "done"], 3],
        ]
        one["events"][0]["detail"] = one["events"][0]["kind"] = HOSTILE
        return one

    with dashboard(hostile, lambda seconds: told(1, seconds)) as server:
        text, console = browse(server.url, tmp_path, "--dump-dom")
    page = Elements(text)
    assert not console, console
    assert "img" not in page.names and "b" not in page.names
    assert page.names.count("script") == 1 and "onerror" not in page.attributes
    # Shown as it is, in each place: "owned" is text, and no title.
    assert "<title>tfdist dashboard</title>" in text
    assert page.text.count("<img src=x") > 5 and "&lt;b" in page.text


@pytest.mark.parametrize(
    "loss",
    [
        [[1, 1e16], [2, 1e16 + 2]],
        [[2**52, 0.25], [2**52, 0.5]],
        [[9, 1e300], [1, -1e300]],
    ],
)
def test_hostile_numbers(tmp_path, loss):
    """Ticks that lie closer than numbers do, and numbers at the limits."""

    def hostile(seconds):
        peers = {f"peer {index}": (int(1e15 * seconds), index) for index in range(3000)}
        return told(0, seconds) | {"loss": loss, "memory": 10**18, "traffic": peers}

    with dashboard(hostile, lambda seconds: told(1, seconds)) as server:
        text, console = browse(server.url, tmp_path, "--dump-dom")
    page = Elements(text)
    assert not console, console
    assert "2 of 2" in page.text and "Looks every second." in page.text


def test_without_the_token(tmp_path):
    with dashboard(lambda seconds: told(0, seconds)) as server:
        text, _ = browse(server.url.partition("?")[0], tmp_path, "--dump-dom")
    assert "tfdist" not in text.replace(server.url, "") and "worker" not in text
