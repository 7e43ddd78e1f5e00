"""`Elastic`: the limits of an elastic job, and the errors of unusable ones."""

from __future__ import annotations

import pytest

import tfdist
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.errors import ClusterConfigError

pytestmark = pytest.mark.timeout(30)

FIVE = Cluster(workers=tuple(f"h{i}:1" for i in range(5)))


@pytest.mark.parametrize(
    ("text", "elastic", "start"),
    [
        ("2:8", Elastic(2, 8), 5),
        (" 2:8:4 ", Elastic(2, 8, 4), 4),
        ("5:5", Elastic(5, 5), 5),
        ("1:1:1", Elastic(1, 1, 1), 1),
    ],
)
def test_text(text, elastic, start):
    assert Settings.from_environment({"TFDIST_ELASTIC": text}).elastic == elastic
    assert elastic.start(FIVE) == start


def test_defaults():
    assert Settings.from_environment({"TFDIST_ELASTIC": " "}).elastic is None
    assert Elastic() == Elastic(1, None, None) and Elastic().start(FIVE) == 5
    assert tfdist.Elastic is Elastic


@pytest.mark.parametrize("text", ["2", "2:", ":8", "2:8:4:1", "a:b", "-1:3", "1.5:2", "2-8"])
def test_what_is_no_text(text):
    with pytest.raises(ClusterConfigError, match="TFDIST_ELASTIC: expected .* received '"):
        Settings.from_environment({"TFDIST_ELASTIC": text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:3", "TFDIST_ELASTIC 0:3: expected MIN to be a positive integer, received 0"),
        ("4:3", "expected MAX to be at least MIN = 4, received 3"),
        ("2:4:1", "expected START to be 2 to 4, received 1"),
        ("2:4:5", "expected START to be 2 to 4, received 5"),
        ("2:501", "expected MAX to be at most 500, .* received 501"),
    ],
)
def test_contradictions(text, message):
    with pytest.raises(ClusterConfigError, match=message):
        Settings.from_environment({"TFDIST_ELASTIC": text})


@pytest.mark.parametrize(
    ("elastic", "message"),
    [
        (Elastic(6), "number of training tasks in the cluster to be 6 to 500, received 5"),
        (Elastic(1, 4), "number of training tasks in the cluster to be 1 to 4, received 5"),
        (Elastic(1, 8, 6), "at least start_workers = 6 training tasks in the cluster, received 5"),
    ],
)
def test_limits_that_do_not_fit_the_cluster(elastic, message):
    with pytest.raises(ClusterConfigError, match=message):
        elastic.start(FIVE)


@pytest.mark.parametrize("value", [True, 1.0, "2", 0])
def test_what_is_no_number(value):
    with pytest.raises(ClusterConfigError, match="max_workers to be a positive integer"):
        Elastic(max_workers=value)
