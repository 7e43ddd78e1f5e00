"""Benchmarks of communication, run as documented, with small sizes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.launching import PACKAGE
from support.tiers import rounds

ROOT = Path(__file__).parents[3]
NOT_PERMITTED = 77
PNG = b"\x89PNG\r\n"
PATH = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
ENVIRONMENT = dict(os.environ, PYTHONPATH=PATH, TF_CPP_MIN_LOG_LEVEL="3")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        (sys.executable, *command),
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=110,
    )


def measure(folder: Path, program: str, *arguments: str) -> tuple[dict, str]:
    """Runs a benchmark; returns its figures and its output, and checks that there is a chart."""
    file = folder / "figures" / "figures.json"
    finished = run(f"benchmarks/{program}", *arguments, "--json", str(file))
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert file.with_suffix(".png").read_bytes().startswith(PNG)
    return json.loads(file.read_text()), finished.stdout


def need_namespaces(exit_code: int, stderr: str) -> None:
    if exit_code == NOT_PERMITTED:
        assert "network namespaces cannot be made here" in stderr
        pytest.skip(stderr.splitlines()[-2])


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_all_reduce_compares_with_every_available_baseline(tmp_path):
    without = str(tmp_path / "no_such_python")
    options = ("--rounds", "3", "--max_megabytes", "0.1", "--torch_python", without)
    report, printed = measure(tmp_path, "all_reduce.py", *options)
    assert "PyTorch: not installed; scripts/bench installs it" in printed
    assert report["machine"]["processors"] == os.cpu_count() and "--json" not in report["command"]
    cases = [(row["case"], row["bytes"]) for row in report["rows"]]
    assert cases == [
        ("4 KB", 4096),
        ("10 x 4 KB, in a row", 4096),
        ("64 KB", 65536),
        ("100 x 4 KB", 409600),
    ]
    for row in report["rows"]:
        seconds = row["seconds"]
        assert list(seconds) == ["tfdist", "TensorFlow", "no-op", "bare ring"]
        assert min(seconds.values()) > 0
        assert row["ratios"]["TensorFlow"] == seconds["TensorFlow"] / seconds["tfdist"]
        assert row["added"] == seconds["tfdist"] - seconds["no-op"]
        times, goal = row["ratios"]["TensorFlow"], row["goals"].get("TensorFlow")
        assert ("TensorFlow" in row["missed"]) == (goal is not None and times < goal)
        shown = rf"{row['case']} +{seconds['tfdist'] * 1e3:.3f} \| +"
        shown += rf"{seconds['TensorFlow'] * 1e3:.3f} +{times:.1f}x " + rf"\[{goal}\]" * bool(goal)
        assert re.search(shown, printed), printed


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_network_measures_separate_hosts(tmp_path):
    file = tmp_path / "network.json"
    finished = run("benchmarks/network.py", "--quick", "--json", str(file))
    need_namespaces(finished.returncode, finished.stderr)
    assert finished.returncode == 0, finished.stderr[-3000:]
    report = json.loads(file.read_text())
    assert report["streams"]["one"] > 0 and report["streams"]["all"] > 0
    # Each of four hosts sends 2 x 3/4 of the bytes, headers (66 in 1514, or more in small
    # frames) and retransmissions.
    sent = {"tfdist": 1.5, "tfdist fp16": 0.75, "TensorFlow": 1.5, "bare ring": 1.5}
    assert [row["implementation"] for row in report["rows"]] == list(sent)
    for row in report["rows"]:
        expected = sent[row["implementation"]]
        assert expected * 1514 / 1448 < row["sent"] < 1.2 * expected
        # The links limit the rate: at most a burst beyond it.
        assert row["seconds"] > 0.9 * expected * row["bytes"] / 125e6
        assert re.search(
            rf"8 MB {row['implementation']} +{row['seconds'] * 1e3:.1f} +{row['of_line']:.1%}",
            finished.stdout,
        ), finished.stdout
    (step,) = report["training"]["rows"]
    assert 0 < step["alone"] < min(step["after"], step["stock"])
    assert re.search(rf" {step['after']:.3f} +{step['alone'] / step['after']:.1%}", finished.stdout)
    for name in ("network.png", "network_training.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("part", "place", "ranks"), [("link", "1 Gbit/s", 3), ("loopback", "loopback", 2)]
)
def test_encryption_compares_jobs_in_turn(part, place, ranks, tmp_path):
    file = tmp_path / "encryption.json"
    finished = run(
        *("benchmarks/encryption.py", "--parts", part, "--hosts", "3", "--rounds", "3"),
        *("--megabytes", "8", "--model_megabytes", "1", "--json", str(file)),
    )
    need_namespaces(finished.returncode, finished.stderr)
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    reduced, *served = [row["what"] for row in rows]
    assert reduced == f"all-reduce of 8 MB, {ranks} ranks"
    assert served == ["step of 2 workers, 1 MB", "push and pull, 1 MB"]
    for row in rows:
        low, median, high = row["slower"]
        assert row["place"] == place and low <= median <= high
        seconds = row["seconds"]["within TLS"]
        shown = rf"{row['what']} .* {1e3 * seconds:.1f} .*{re.escape(f'{median:+.1%}')}"
        assert re.search(shown, finished.stdout), finished.stdout
    if part == "link":  # which limits the rate: at most a burst beyond it
        assert min(rows[0]["seconds"].values()) > 0.9 * 4 / 3 * (8 << 20) / 125e6


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
def test_encryption_lets_tasks_join(tmp_path):
    file = tmp_path / "encryption.json"
    finished = run(
        *("benchmarks/encryption.py", "--parts", "tasks", "--tasks", "3", "--json", str(file))
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    joined = json.loads(file.read_text())["joining"]
    assert (
        joined["tasks"] == 3 and 0 < joined["most"]["within TLS"] < joined["seconds"]["within TLS"]
    )
    assert "3 tasks join one job" in finished.stdout


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.alone  # a step that computes alone is to take no longer than one with an exchange
@pytest.mark.timeout(120)
def test_planner_is_compared_with_measured_steps(tmp_path):
    file = tmp_path / "planner.json"
    finished = run("benchmarks/planner.py", "--quick", "--json", str(file))
    need_namespaces(finished.returncode, finished.stderr)
    assert finished.returncode == 0, finished.stderr[-3000:]
    report = json.loads(file.read_text())
    after, overlapped = report["rows"]
    assert (after["kind"], overlapped["kind"]) == ("after", "overlapped")
    # 2 x 3/4 of the bytes, at 125 MB/s, and computing for twice that time.
    ring = 1.5 * 4 * after["parameters"] / 125e6
    assert after["link"] - after["alone"] == pytest.approx(ring)
    assert after["alone"] > 2 * ring and after["seconds"] > after["alone"] + 0.9 * ring
    assert after["alone"] <= overlapped["link"] < after["link"]
    for row in report["rows"]:
        assert row["sockets_error"] == pytest.approx(row["sockets"] / row["seconds"] - 1)
        shown = f"{row['seconds']:9.3f} {row['link']:8.3f} {row['link_error']:+7.1%}"
        assert shown in finished.stdout
    assert file.with_suffix(".png").read_bytes().startswith(PNG)


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_network_leaves_no_namespace_when_it_is_interrupted():
    def namespaces(process: subprocess.Popen) -> list[str]:
        folder = Path("/run/netns")
        return [str(path) for path in folder.glob(f"tfdist-{process.pid}-*")]

    # Background processes of a shell ignore SIGINT, and their children inherit that.
    command = ["env", "--default-signal=INT", sys.executable, "benchmarks/network.py", "--quick"]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60
        while len(namespaces(process)) < 5 and process.poll() is None:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        stderr = process.stderr.read().decode()
        process.wait(timeout=60)
    need_namespaces(process.returncode, stderr)
    assert "KeyboardInterrupt" in stderr
    assert namespaces(process) == []


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
def test_network_names_a_missing_command(tmp_path):
    finished = run("benchmarks/network.py", PATH=str(tmp_path))
    assert finished.returncode == NOT_PERMITTED, finished.stderr[-3000:]
    assert "cannot be made here: there is no command 'ip'" in finished.stderr


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_memory_and_descriptors_do_not_grow(tmp_path):
    steps = rounds(600, 2000)
    report, printed = measure(tmp_path, "memory.py", "--steps", str(steps), "--communicators", "10")
    assert [s["after"] for s in report["steps"]] == list(range(0, steps + 1, steps // 20))
    assert [sample["after"] for sample in report["communicators"]] == list(range(1, 11))
    for held in (held for sample in report["steps"] for held in sample["ranks"]):
        assert held["resident"] > 10_000 and held["descriptors"] > 3 and held["threads"] > 1
    grown = report["growth"]
    assert grown["steps"]["descriptors"] == grown["communicators"]["descriptors"] == 0
    # KB of both ranks in a quarter of the steps: a leak of 0.4 KB per rank and step is 400 in a
    # long run, one of 1.3 KB in a usual one.
    assert grown["steps"]["resident"] < 400
    assert f"growth, of all ranks: {grown['steps']['resident']} KB, 0 descriptors" in printed


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_training_step_compares_with_stock(tmp_path):
    options = ("--rounds", "1", "--steps", "4", "--scale", "0.1", "--models", "dense,cnn")
    # PyTorch is in an environment of its own.
    report, printed = measure(tmp_path, "training_step.py", *options, "--torch", "none")
    rows = report["rows"]
    assert [row["model"] for row in rows] == ["dense", "cnn"]
    # 1024 x 256 x 256 x 150 x 10, with biases.
    assert rows[0]["parameters"] == 1025 * 256 + 257 * 256 + 257 * 150 + 151 * 10
    for row in rows:
        ours, theirs = row["tfdist"], row["TensorFlow"]
        assert ours["one"] > 0 and theirs["two"] > 0
        part = (ours["two"] - ours["one"]) / (theirs["two"] - theirs["one"])
        assert theirs["ours_of_theirs"] == part
        assert re.search(rf"{row['model']} .* {1e3 * ours['two']:.2f} ", printed)
    assert "PyTorch: not installed" in printed


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_timeline_compares_recorded_steps(tmp_path):
    options = ("--rounds", "2", "--steps", "4", "--scale", "0.05")
    report, printed = measure(tmp_path, "timeline.py", *options)
    assert [row["model"] for row in report["rows"]] == ["dense", "cnn"]
    for row in report["rows"]:
        assert row["collectives"] >= 1 and row["bytes"] > 500
        assert row["with"] > 0 and row["quartiles"][0] <= row["overhead"] <= row["quartiles"][1]
        assert re.search(rf"{row['model']} .* {1e3 * row['with']:.2f} ", printed)


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_idle_metrics_compares_pairs_of_jobs(tmp_path):
    report, printed = measure(tmp_path, "idle_metrics.py", "--rounds", "3", "--steps", "6")
    (row,) = report["rows"]
    assert row["without"] > 0 and row["share"] == row["added"] / row["without"]
    assert row["quartiles"][0] <= row["added"] <= row["quartiles"][1]
    assert re.search(rf"dense .* {1e3 * row['with']:.3f} ", printed)


@pytest.mark.long(covered_by="test_overlap_shows_when_buckets_travelled")
@pytest.mark.timeout(120)
def test_sizes_of_buckets_are_compared(tmp_path):
    options = ("--rounds", "3", "--steps", "2", "--models", "cnn", "--sizes", "64 KB,one bucket")
    report, printed = measure(tmp_path, "bucket_size.py", *options)
    (row,) = report["rows"]
    small, one = (row["seconds"][size] * 1e3 for size in ("64 KB", "one bucket"))
    assert re.search(rf"small CNN +{small:.1f} +{one:.1f}\n", printed), printed


@pytest.mark.timeout(120)
@pytest.mark.alone
def test_overlap_shows_when_buckets_travelled(tmp_path):
    options = ("--model", "cnn", "--steps", "3", "--bytes_per_pack", "65536")
    report, printed = measure(tmp_path, "overlap.py", *options)
    buckets = report["buckets"]
    # Convolutions of 3 x 3 x 32 and 3 x 3 x 32 x 64 weights, layers of 1600 x 128 and 128 x 10.
    assert sum(b["bytes"] for b in buckets) == 4 * (10 * 32 + 289 * 64 + 1601 * 128 + 129 * 10)
    assert len(buckets) > 2 and all(b["ready"] < b["reduced"] for b in buckets)
    assert report["backward"] == buckets[-1]["ready"]
    assert report["end"] == max(b["reduced"] for b in buckets)
    assert 0 < report["hidden"] <= report["backward"]
    assert f"{report['hidden'] * 1e3:.1f} ms beside back-propagation" in printed
