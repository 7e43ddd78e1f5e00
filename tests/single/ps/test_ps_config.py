"""`PsConfig`, and `Liveness`: when a job has ended."""

from __future__ import annotations

import math

import pytest

from tfdist.config.cluster import Cluster
from tfdist.errors import ClusterConfigError
from tfdist.ops.ps.server_records import ServerEvent
from tfdist.ps.config import PsConfig
from tfdist.ps.liveness import Liveness


def test_defaults_and_text():
    config = PsConfig.make(3)
    assert (config.mode, config.staleness, config.num_aggregate) == ("async", 0, 0)
    assert PsConfig.parse(config.text()) == config
    with pytest.raises(ClusterConfigError, match="expected a parameter-server configuration"):
        PsConfig.parse('{"mode": "async"}')


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [(0, ("sync", 0, 3)), (math.inf, ("async", 0, 0)), (2, ("ssp", 2, 0))],
)
def test_staleness_decides(staleness, expected):
    config = PsConfig.make(3, "ssp", staleness)
    assert (config.mode, config.staleness, config.num_aggregate) == expected


def test_backup_workers():
    assert PsConfig.make(3, "sync").num_aggregate == 3
    assert PsConfig.make(3, "sync", num_aggregate=2).num_aggregate == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "asynchronous"}, "mode to be one of async, sync, ssp, received 'asynchronous'"),
        ({"mode": "ssp"}, "staleness .* whole number of steps, or math.inf, received None"),
        ({"mode": "ssp", "staleness": -1}, "staleness .* received -1"),
        ({"mode": "ssp", "staleness": 1.5}, "staleness .* received 1.5"),
        ({"mode": "ssp", "staleness": math.nan}, "staleness .* received nan"),
        ({"staleness": 1}, "staleness to be none with mode='async', received 1"),
        ({"num_aggregate": 2}, "num_aggregate to be none unless mode='sync', received 2"),
        ({"mode": "sync", "num_aggregate": 4}, "num_aggregate to be 1 to 3.*received 4"),
        ({"mode": "sync", "num_aggregate": 0}, "num_aggregate to be 1 to 3.*received 0"),
        ({"compensation": "dcasgd"}, "compensation .* one of dc-asgd, adadelay, adaptive-revision"),
        ({"n_push": 0}, "n_push to be a number of steps, 1 or more, received 0"),
        ({"n_fetch": 1.5}, "n_fetch to be a number of steps, 1 or more, received 1.5"),
        ({"mode": "sync", "n_push": 2}, "n_push to be 1 unless mode='async', received 2"),
        ({"mode": "ssp", "staleness": 2, "n_fetch": 2}, "n_fetch to be 1 unless mode='async'"),
        ({"n_push": 2}, "n_fetch to be a multiple of n_push=2: .* received 1"),
        ({"n_push": 2, "n_fetch": 5}, "n_fetch to be a multiple of n_push=2: .* received 5"),
        ({"mode": "sync", "compensation": "dc-asgd"}, "compensation .* received 'dc-asgd'"),
        ({"compensation_lambda": 0}, "compensation_lambda to be a positive number, received 0"),
        ({"worker_timeout": -1.0}, "worker_timeout to be a positive number, received -1.0"),
        ({"mode": "sync", "hogwild": True}, "hogwild to be False with mode='sync'"),
        (
            {"hogwild": True, "compensation": "dc-asgd"},
            "hogwild to be False with compensation='dc-asgd'.*received True",
        ),
        (
            {"hogwild": True, "compensation": "adaptive-revision"},
            "hogwild to be False with compensation='adaptive-revision'.*received True",
        ),
    ],
)
def test_bad_arguments(arguments, expected):
    with pytest.raises(ClusterConfigError, match=f"ParameterServerStrategy: expected {expected}"):
        PsConfig.make(3, **arguments)


def test_differences():
    sync, backup = PsConfig.make(3, "sync"), PsConfig.make(3, "sync", num_aggregate=2)
    assert sync.differences(backup) == "num_aggregate 3 / 2"
    assert sync.differences(sync) == ""


@pytest.fixture
def liveness():
    cluster = Cluster(chief=("a:1",), workers=("b:1",), ps=("c:1",), task_type="ps", task_index=0)
    return Liveness(cluster, timeout=10, now=0)


def _record(liveness, now, kind, worker):
    liveness.record(ServerEvent(kind, worker, ""), now)


def test_a_worker_that_comes_and_goes_does_not_fill_the_log(liveness):
    lines = []
    for i in range(100):
        _record(liveness, 1 + 0.1 * i, "came", 1)
        _record(liveness, 1 + 0.1 * i, "lost", 1)
        lines.append(liveness.line(1 + 0.1 * i))
    assert lines[0].endswith("worker 0 at b:1 (gone for good in 10 s)")
    assert 5 < sum(line is not None for line in lines) <= 11


def test_a_job_ends_when_all_have_left(liveness):
    for worker in (0, 1):
        _record(liveness, 1, "came", worker)
    assert liveness.verdict(1000) is None
    _record(liveness, 1000, "left", 0)
    assert liveness.verdict(2000) is None
    _record(liveness, 2000, "left", 1)
    assert liveness.verdict(2000) == ""


def test_a_job_whose_chief_has_left_waits_for_a_slow_worker(liveness):
    _record(liveness, 1, "came", 0)
    _record(liveness, 2, "left", 0)
    assert liveness.verdict(9) is None
    _record(liveness, 9, "came", 1)
    assert liveness.verdict(1000) is None
    _record(liveness, 1000, "left", 1)
    assert liveness.verdict(1000) == ""


def test_a_job_does_not_wait_for_a_worker_that_it_has_refused(liveness):
    _record(liveness, 1, "came", 0)
    _record(liveness, 2, "left", 0)
    liveness.give_up(1)
    assert liveness.verdict(2) == ""
    _record(liveness, 3, "came", 1)
    _record(liveness, 4, "lost", 1)
    liveness.give_up(1)  # another process, which was refused
    assert liveness.verdict(5) is None


def test_a_job_does_not_wait_for_who_never_came_after_the_timeout(liveness):
    _record(liveness, 1, "came", 0)
    _record(liveness, 11, "left", 0)
    assert liveness.verdict(11) == ""


def test_a_job_waits_for_a_lost_worker_for_a_while(liveness):
    for worker in (0, 1):
        _record(liveness, 1, "came", worker)
    _record(liveness, 5, "lost", 1)
    _record(liveness, 6, "left", 0)
    assert liveness.verdict(14) is None
    assert liveness.verdict(15) == ""


def test_a_job_fails_without_its_chief(liveness):
    assert liveness.verdict(9) is None
    expected = "chief at a:1 is gone, or never came: expected it within 10 s"
    assert liveness.verdict(10) == expected
    _record(liveness, 10, "came", 0)
    _record(liveness, 10, "came", 1)
    assert liveness.verdict(1000) is None
    _record(liveness, 1000, "lost", 0)
    assert liveness.verdict(1009) is None
    _record(liveness, 1009, "came", 0)
    assert liveness.verdict(2000) is None
    _record(liveness, 2000, "lost", 0)
    assert liveness.verdict(2010) == expected


@pytest.fixture
def elastic():
    cluster = Cluster(workers=("a:1", "b:1"), ps=("c:1",), task_type="ps", task_index=0)
    return Liveness(cluster, timeout=10, now=0, is_elastic=lambda: True)


def test_an_elastic_job_lasts_as_long_as_a_worker_is_connected(elastic):
    for worker in (0, 1):
        _record(elastic, 1, "came", worker)
    _record(elastic, 2, "lost", 0)
    assert elastic.verdict(1000) is None and elastic.line(1000) is None
    _record(elastic, 1000, "left", 1)
    assert elastic.verdict(1000) == ""


def test_an_elastic_job_waits_for_lost_workers_for_a_while(elastic):
    _record(elastic, 1, "came", 1)
    _record(elastic, 5, "lost", 1)
    assert elastic.verdict(14) is None
    assert elastic.line(14) == "waiting for worker 1 at b:1 (gone for good in 1 s)"
    assert elastic.verdict(15) == "all workers are gone: expected one within 10 s"
    _record(elastic, 16, "came", 0)
    assert elastic.verdict(100) is None


def test_an_elastic_job_fails_if_no_worker_comes(elastic):
    assert elastic.verdict(9) is None
    assert elastic.verdict(10) == (
        "worker 0 at a:1 is gone, or never came: expected it within 10 s"
    )
