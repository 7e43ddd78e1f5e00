"""Which findings follow from the measurements."""

from __future__ import annotations

import dataclasses
import itertools
import json

from tfdist.check.judge import judge
from tfdist.check.machine import Machine
from tfdist.check.measure import Link, RankClock
from tfdist.check.report import Report

VERSIONS = {"tfdist": "1", "TensorFlow": "2.21.0", "Keras": "3", "Python": "3.11", "kernel": "6.1"}
MACHINE = Machine("host", VERSIONS, "abc", 1024, None)


def found(ranks, machines=None, speeds=None, rates=None, latencies=None, clocks=None, local=False):
    """The findings of a job whose links carry 1 GB/s, except for `rates`."""
    links = [
        Link(
            pair,
            local,
            (latencies or {}).get(pair, 1e-4),
            (rates or {}).get(pair, 1e9),
        )
        for pair in itertools.combinations(range(ranks), 2)
    ]
    return judge(
        [f"worker {rank}" for rank in range(ranks)],
        machines or [MACHINE] * ranks,
        speeds or [100e9] * ranks,
        links,
        clocks or {},
    )


def test_equal_tasks():
    assert found(4) == found(1) == []
    # Below the thresholds.
    assert found(3, speeds=[100e9, 71e9, 100e9], rates={(0, 1): 6e8}) == []


def test_a_slow_rank():
    (finding,) = found(3, speeds=[100e9, 110e9, 40e9])
    assert finding.is_problem and finding.who == "worker 2"
    assert "40.0 GFLOP/s, 40% of the median (100.0); a problem below 70%" in finding.text


def test_a_busy_machine_is_named_once():
    busy = dataclasses.replace(MACHINE, cpus=4, load=40.2)
    other = dataclasses.replace(MACHINE, host="other", cpus=4, load=7.9)
    (finding,) = found(3, machines=[other, busy, busy])
    assert not finding.is_problem and finding.who == "worker 1"
    assert "host is busy: in the last minute 40 programs wanted its 4 processors" in finding.text


def test_two_ranks_name_no_rank():
    assert found(2, speeds=[100e9, 10e9]) == []


def test_a_host_with_a_slow_network_is_named_also_where_most_links_are_its_own():
    for local in (False, True):
        (finding,) = found(3, rates={(0, 1): 1e8, (1, 2): 1e8}, local=local)
        assert finding.who == "worker 1"
        assert "100 MB/s, 10% of the usual 1,000 MB/s" in finding.text


def test_a_single_slow_link():
    (finding,) = found(4, rates={(1, 3): 2e8})
    assert finding.who == "worker 1 and worker 3"
    assert "20% of the usual 1,000 MB/s; a problem below 50%" in finding.text


def test_latency():
    (finding,) = found(4, latencies={(0, 2): 0.02, (1, 2): 0.02, (2, 3): 0.03})
    assert finding.who == "worker 2" and "20.00 ms of latency, usual are 0.10 ms" in finding.text
    # Ten times the usual, but less than a millisecond more.
    assert found(3, latencies={(0, 1): 9e-4}) == []


def test_clocks():
    clocks = {1: RankClock(-40.25, 0.001), 2: RankClock(1.5, 0.6), 3: RankClock(0.2, 0.001)}
    (finding,) = found(4, clocks=clocks)
    assert finding.who == "worker 1" and "40.2 s behind the clock of worker 0" in finding.text


def test_versions():
    other = dataclasses.replace(MACHINE, versions=VERSIONS | {"Keras": "3.1"})
    (finding,) = found(3, machines=[MACHINE, MACHINE, other])
    assert finding.is_problem and finding.who == "worker 2"
    assert "Keras is 3.1, but 3 on worker 0: install the same" in finding.text
    kernel = dataclasses.replace(MACHINE, versions=VERSIONS | {"kernel": "6.2"})
    (finding,) = found(2, machines=[MACHINE, kernel])
    assert not finding.is_problem
    library = dataclasses.replace(MACHINE, library="def")
    (finding,) = found(2, machines=[MACHINE, library])
    assert not finding.is_problem and "op library (def)" in finding.text


def test_problems_come_before_warnings():
    machine = dataclasses.replace(MACHINE, warnings=("slow",), problems=("broken",))
    first, second = found(1, machines=[machine])
    assert (str(first), str(second)) == ("PROBLEM: worker 0: broken", "warning: worker 0: slow")


def test_the_report():
    links = [Link((0, 1), False, 1e-4, 1.5e8)]
    report = Report.of(["a", "b"], [MACHINE] * 2, [2e9, 3e9], links, {1: RankClock(0.004, 0.001)})
    text = report.as_text()
    assert report.is_fine and text.endswith("nothing is wrong")
    assert "a - b  network  0.10 ms  150 MB/s" in text and "+4.0 ms" in text
    values = json.loads(report.as_json())
    assert values["ok"] and values["findings"] == []
    assert values["workers"][1]["clock_offset"] == 0.004
    assert values["links"] == [
        {"workers": ["a", "b"], "local": False, "latency": 1e-4, "bandwidth": 1.5e8}
    ]
