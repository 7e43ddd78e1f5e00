"""`tfdist check` with several tasks names the slow one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.launching import PACKAGE
from support.processes.ranks import on_ranks, start_ranks
from tfdist.check import measure
from tfdist.check.examine import examine
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from baselines import namespaces

SLOW, AHEAD = 1, 2


def _report():
    return examine(Cluster.from_environment(), Settings.from_environment(), None)


def _slow_multiply():
    measure.multiply()
    time.sleep(0.5)


@on_ranks(3)
def test_a_slow_task_and_a_wrong_clock_are_named(ctx):
    if ctx.rank == SLOW:
        speed = measure.speed
        measure.speed = lambda: speed(_slow_multiply)
    if ctx.rank == AHEAD:
        measure.time = SimpleNamespace(
            perf_counter=time.perf_counter, time=lambda: time.time() + 60.0
        )
    report = _report()
    assert not report.is_fine
    named = {(finding.who, finding.text.partition(":")[0]) for finding in report.findings}
    assert ("worker 1", "computes slowly") in named
    assert any(w == "worker 2" and "60.0 s ahead of the clock of worker 0" in t for w, t in named)
    assert [link.ranks for link in report.links] == [(0, 1), (0, 2), (1, 2)]
    for link in report.links:
        assert link.is_local and 0 < link.latency < 1 and link.bandwidth > 1e6
    assert abs(report.clocks[1].offset) <= report.clocks[1].error < 1
    assert "worker 1" in report.as_text() and len(json.loads(report.as_json())["workers"]) == 3


@pytest.mark.long(
    covered_by="test_a_slow_task_and_a_wrong_clock_are_named, single/cli/test_check_command.py"
)
@pytest.mark.timeout(300)
def test_the_command(tmp_path):
    """The launcher's tasks meet; what they print is one JSON object, and nothing else."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tfdist", "check", "--workers", "3", "--json"),
            *("--checkpoint-dir", str(tmp_path / "saved")),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": PACKAGE},
    )
    found = json.loads(ended.stdout)
    assert ended.returncode == (0 if found["ok"] else 1), ended.stderr
    assert [worker["name"] for worker in found["workers"]] == ["worker 0", "worker 1", "worker 2"]
    assert len(found["links"]) == 3 and not (tmp_path / "saved").exists()


def _on_hosts(ctx, hosts, addresses):
    namespaces.inside(hosts[ctx.rank], lambda: None)
    task = {"type": "worker", "index": ctx.rank}
    workers = [f"{address}:{namespaces.PORT}" for address in addresses]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    report = _report()
    # Latencies depend on how busy this machine is.
    return [(f.who, f.text) for f in report.findings if "MB/s" in f.text], report.links


@pytest.mark.long(
    covered_by="test_a_slow_task_and_a_wrong_clock_are_named, single/check/test_judge.py"
)
@pytest.mark.timeout(240)
def test_a_slow_link_is_named(tmp_path):
    """Of three hosts one has a slow cable: two of the three links are slow."""
    try:
        network = namespaces.Network(3, gigabits=0.4)
    except namespaces.NotPermitted as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    with contextlib.closing(network):
        network.set_rate(SLOW, 0.05)
        arguments = {"hosts": network.hosts, "addresses": network.addresses}
        with start_ranks(_on_hosts, 3, kwargs=arguments, tmp_path=tmp_path) as ranks:
            outcomes = ranks.join(200)
    for outcome in outcomes:
        assert outcome.ok, outcome
        findings, links = outcome.result
        ((who, text),) = findings
        assert who == "worker 1" and "its links are slow" in text
        rates = {link.ranks: link.bandwidth * 8 / 1e9 for link in links}
        # No faster than the links, and on a busy machine slower.
        assert rates[0, 2] < 0.5 and max(rates[0, 1], rates[1, 2]) < min(0.07, rates[0, 2] / 2)
