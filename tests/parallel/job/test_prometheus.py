"""Prometheus reads a running job, and finds something for each query of the Grafana dashboard."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import warm_python
from support.launching import PACKAGE, Launched
from tfdist.cli.main import main
from tfdist.launch.ports import free_ports

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="Prometheus is not installed: apt-get install prometheus",
    ),
    # It needs a Debian package.
    pytest.mark.long(covered_by="parallel/job/test_metrics.py"),
]
OBSERVABILITY = Path(__file__).parents[3] / "docs/operate/observability"
ROWS = 256
LOGS = ("output", "prometheus.log")
# Two workers, of which the second is late; a table on a parameter server; and data tasks.
SCRIPT = f"""
import time
import keras, numpy as np, tensorflow as tf, tfdist

strategy = tfdist.MultiWorkerMirroredStrategy(checkpoint_dir="snapshots", checkpoint_every=1.0)
with strategy.scope():
    ids = keras.Input((), dtype="int64")
    row = tfdist.layers.Embedding(None, 4, name="users")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(row))
    model.compile("sgd", "mse")

class Late(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if tfdist.rank() == 1:
            time.sleep(0.05)

x = np.arange({ROWS})
data = tfdist.data.from_arrays((x, np.ones([{ROWS}, 1], "f4")), task_size=16, name="examples")
model.fit(data.batch(8), epochs=10_000, verbose=0, callbacks=[Late()])
"""


class Prometheus:
    """A running Prometheus, which reads the tasks of one job."""

    def __init__(self, process: subprocess.Popen, port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict]:
        """Returns the result of an instant query.

        Raises:
          AssertionError: Prometheus has refused it.
        """
        parameters = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query?{parameters}", timeout=20) as a:
                answer = json.load(a)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        assert answer["status"] == "success" and not answer.get("warnings"), answer
        return answer["data"]["result"]

    def wait_until(self, expression: str, timeout: float = 90.0) -> list[dict]:
        """Returns the result of a query as soon as there is one."""
        deadline = time.monotonic() + timeout
        while True:
            assert self._process.poll() is None, "Prometheus has ended"
            assert time.monotonic() < deadline, f"no result: {expression}"
            with contextlib.suppress(urllib.error.URLError):  # it does not listen yet
                if found := self.query(expression):
                    return found
            time.sleep(0.2)


@contextlib.contextmanager
def launched(folder: Path) -> Iterator[Launched]:
    """A running job, whose file is job.json in `folder`."""
    (folder / "train.py").write_text(SCRIPT)
    path = os.pathsep.join([PACKAGE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path, "TFDIST_METRICS_PORT": "0"}
    with (folder / "output").open("wb") as output:
        job = Launched(
            [
                *(warm_python.interpreter(), "-m", "tfdist", "run", "--workers", "2", "--ps", "1"),
                *("--job-file", "job.json", "train.py"),
            ],
            environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            yield job
        finally:
            job.close()


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    """A running Prometheus with the configuration of the docs, except its patience."""
    text = (OBSERVABILITY / "prometheus.yml").read_text()
    assert text.count("5s") == 2 and text.count("#authorization") == 1
    # Also with the token, which is commented out there.
    text = text.replace("5s", "1s").replace("    #a", "    a").replace("    #  c", "      c")
    (folder / "prometheus.yml").write_text(text)
    (port,) = free_ports(1)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Prometheus(process, port)
        finally:
            process.kill()
            process.wait()


def queries() -> Iterator[str]:
    """The expressions of the dashboard."""
    dashboard = json.loads((OBSERVABILITY / "tfdist-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$job", ".*").replace("$__rate_interval", "10s")


def test_a_running_job(tmp_path, capsys):
    with launched(tmp_path) as job:
        deadline = time.monotonic() + 60
        while not (tmp_path / "job.json").exists():
            assert time.monotonic() < deadline and job.process.poll() is None, "no job file"
            time.sleep(0.05)
        for what in ("targets", "token"):
            capsys.readouterr()
            assert main(["metrics", what, "--job", str(tmp_path / "job.json")]) == 0
            name = "targets.json" if what == "targets" else what
            (tmp_path / name).write_text(capsys.readouterr().out)
        with prometheus(tmp_path) as server:
            try:
                check(server)
            except AssertionError as error:
                logs = [(tmp_path / name).read_text()[-3000:] for name in LOGS]
                raise AssertionError("\n".join([str(error), *logs])) from error


def check(server: Prometheus) -> None:
    (rate,) = server.wait_until("sum(rate(tfdist_samples_total[10s])) > 0")
    assert float(rate["value"][1]) > 0
    server.wait_until("tfdist_ps_snapshot_timestamp_seconds")
    for text in queries():
        server.wait_until(text)
    # The late one is named.
    server.wait_until(
        'sum(rate(tfdist_wait_seconds_total{peer="worker 0"}[10s])) '
        '> 2 * sum(rate(tfdist_wait_seconds_total{peer="chief"}[10s]))'
    )
    server.wait_until("count(tfdist_info) == 3")
    # A row is made in the step that first needs it.
    server.wait_until(f"sum(tfdist_ps_rows) == {ROWS}")
