"""Slurm's short forms of lists, and what is none."""

from __future__ import annotations

import time

import pytest

from tfdist.config.environments import nodelist
from tfdist.errors import ClusterConfigError

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("a,b", ["a", "b"]),
        ("node[01-03,7],other", ["node01", "node02", "node03", "node7", "other"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("x[1],y[2-2].example.org", ["x1", "y2.example.org"]),
        (" gpu-a[3,1]\n", ["gpu-a3", "gpu-a1"]),
    ],
)
def test_hosts(text, expected):
    assert nodelist.hosts(text, "LIST") == expected


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", ",a", "a,,b", "n[1-3", "n1-3]", "n[]", "n[3-1]", "n[a-b]", "n[1,]", "n[1-]"]
    + ["n[1--3]", "n[[1]]", "a b", "a:1", "a/b", "é", "n[1-99999999999999]"],
)
def test_what_is_no_list_of_hosts(text):
    with pytest.raises(ClusterConfigError, match="LIST: expected"):
        nodelist.hosts(text, "LIST")


@pytest.mark.parametrize(
    "text",
    ["n[0-999999999]", "n[0-65536]", "[0-999][0-999][0-999]", "a," * 65536 + "a"]
    + ["[0-9]" * 20, "a[0-60000],b[0-60000]"],
)
def test_a_huge_list_costs_nothing(text):
    start = time.monotonic()
    with pytest.raises(ClusterConfigError, match="LIST: expected at most 65536"):
        nodelist.hosts(text, "LIST")
    assert time.monotonic() - start < 5


def test_counts():
    assert nodelist.counts("2(x3),1", "COUNTS") == [2, 2, 2, 1]
    assert nodelist.counts("4", "COUNTS") == [4]
    for text in ("", "2(x0)", "0", "2x3", "2(3)", "2(x3", "1,", "-1", "2(x3),a"):
        with pytest.raises(ClusterConfigError, match=r"COUNTS: expected tasks per node"):
            nodelist.counts(text, "COUNTS")
    for text in ("1(x999999999)", "999999999", "40000,40000"):
        with pytest.raises(ClusterConfigError, match="COUNTS: expected at most 65536 tasks"):
            nodelist.counts(text, "COUNTS")


def test_numbers():
    assert nodelist.numbers("12000-12002,13000", "PORTS") == [12000, 12001, 12002, 13000]
    assert nodelist.numbers("[12000-12001]", "PORTS") == [12000, 12001]
    with pytest.raises(ClusterConfigError, match="PORTS: expected ranges"):
        nodelist.numbers("many", "PORTS")
