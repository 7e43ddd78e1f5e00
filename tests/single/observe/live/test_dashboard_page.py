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

from single.observe.live.live_states import fit, serving, state
from support.browser import tab
from tfdist.observe.live.dashboard import Dashboard, JobView
from tfdist.observe.live.job_record import JobEnd, JobRecord
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
        fit=fit(),
        curves={
            "loss": [[step, 2.0 / step if step % 7 else None] for step in range(1, 60)],
            "val_loss": [[step, 2.5 / step] for step in range(10, 60, 10)],
            "accuracy": [[step, step / 100] for step in range(1, 60)],
        },
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
def dashboard(*tasks, end=None) -> Iterator[Dashboard]:
    """Serves the page of a job; each task is called for its state with the seconds since now.

    `end` is its end, which comes after two looks.
    """
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
        looks = []

        def ended():
            looks.append(1)
            return end if len(looks) > 2 else None

        view = JobView(sampler, "job.json", JobRecord(addresses, None, ended))
        server = Dashboard(view, TOKEN, "127.0.0.1", 0)
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
    assert "curve training" in classes and "curve validation" in classes and "failed" in classes
    assert "4.0 KB: " in page.text and "not over yet" in page.text
    # Both metrics can be chosen; the newest values of all are listed.
    assert page.attributes["value"][-2:] == ["loss", "accuracy"]
    assert "loss 0.0339 0.05 accuracy 0.59 –" in page.text
    assert "Epoch 2 of 5" in page.text and "Time left 1 min" in page.text
    # A head of the table, and in the summary.
    assert page.text.count("CPU") == 2 and "5 %" in page.text


def test_shows_the_end_of_a_job(tmp_path):
    workers = [functools.partial(told, rank) for rank in range(2)]
    end = JobEnd(time.time(), 3, {})
    with dashboard(*workers, end=end) as server:
        urllib.request.urlopen(server.url.replace("/?", "/job.json?"), timeout=20).close()
        time.sleep(1.0)
        urllib.request.urlopen(server.url.replace("/?", "/job.json?"), timeout=20).close()
        text, console = browse(server.url, tmp_path, "--dump-dom")
    page = Elements(text)
    assert not console, console
    assert "The job is over: exit code 3, at " in page.text
    assert "Exit code 3" in page.text and page.text.count("has ended") >= 2
    assert "curve validation" in page.attributes["class"] and "end −2 s" in page.text


@pytest.mark.parametrize("width", [420, 1300])
def test_the_page_fits_its_width(tmp_path, width):
    """Tables of tasks become lists on a telephone; nothing is cut off at its right."""
    workers = [functools.partial(told, rank) for rank in range(3)]
    with dashboard(*workers) as server, tab(tmp_path / "profile", width) as page:
        page.open(server.url)
        page.wait_until("document.querySelectorAll('#timeline svg rect').length > 0")
        root = "document.documentElement"
        assert page.value(f"{root}.scrollWidth") == page.value(f"{root}.clientWidth") <= width
        # Nothing scrolls by itself either, and letters have their size.
        places = "[...document.querySelectorAll('.scroll, section, svg')]"
        assert (
            page.value(f"{places}.filter((one) => one.scrollWidth > one.clientWidth).length") == 0
        )
        wide = "[...document.querySelectorAll('svg.chart')].map((one) => one.getScreenCTM().a)"
        assert page.value(wide) == pytest.approx([1, 1, 1], abs=0.1)
        is_list = page.value("getComputedStyle(document.querySelector('.tasks thead')).display")
        assert (is_list == "none") == (width == 420)
        assert not page.console


def test_a_metric_is_chosen(tmp_path):
    """The choice stays when the page looks again."""
    with dashboard(functools.partial(told, 0)) as server, tab(tmp_path / "profile", 900) as page:
        page.open(server.url)
        label = "document.querySelector('#curves svg')?.getAttribute('aria-label') ?? ''"
        page.wait_until(f"({label}).startsWith('loss over the steps: loss is 0.0339, val_loss')")
        page.value("metric.value = 'accuracy'; metric.dispatchEvent(new Event('change'))")
        accuracy = f"({label}) === 'accuracy over the steps: accuracy is 0.59'"
        assert page.value(accuracy)
        drawn = "performance.getEntriesByName(`${location.origin}/job.json`).length"
        count = page.value(drawn)
        page.wait_until(f"{drawn} > {count} + 1")
        assert page.value(accuracy) and page.value("metric.options.length") == 2
        assert not page.console


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
        one["curves"][HOSTILE] = one["curves"]["loss"]
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
        curves = {"loss": loss, "val_loss": loss, "__proto__": loss, "constructor": []}
        huge = fit(epoch=2**52, epochs=-1, batches=0, done=-1, remaining=1e17)
        more = {"curves": curves, "fit": huge, "cpu": 1e17 * seconds, "traffic": peers}
        return told(0, seconds) | more | {"memory": 10**18}

    with dashboard(hostile, lambda seconds: told(1, seconds)) as server:
        text, console = browse(server.url, tmp_path, "--dump-dom")
    page = Elements(text)
    assert not console, console
    assert "2 of 2" in page.text and "Looks every second." in page.text


def test_without_the_token(tmp_path):
    with dashboard(lambda seconds: told(0, seconds)) as server:
        text, _ = browse(server.url.partition("?")[0], tmp_path, "--dump-dom")
    assert "tfdist" not in text.replace(server.url, "") and "worker" not in text
