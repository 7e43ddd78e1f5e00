"""An elastic job without a cluster: the process trains alone, and says so."""

from __future__ import annotations

import logging

from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.job.process import Process

LIMITS = Elastic(1, 4, 2)
WORKERS = Cluster(workers=("localhost:1", "localhost:2"))


def test_one_warning_says_that_the_process_trains_alone(caplog):
    process = Process()
    process.enter(Cluster.local(), Settings(elastic=LIMITS))
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert process.elastic(Cluster.local()) is None
        assert process.elastic(Cluster.local()) is None
    (warning,) = caplog.messages
    assert "trains alone" in warning and "(TFDIST_ELASTIC), but TF_CONFIG has no" in warning


def test_a_cluster_or_no_limits_need_no_warning(caplog):
    process = Process()
    process.enter(WORKERS, Settings(elastic=LIMITS))
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert process.elastic(WORKERS) == LIMITS
        assert process.elastic(WORKERS, Elastic(2)) == Elastic(2)
        process.enter(Cluster.local(), Settings())
        assert process.elastic(Cluster.local()) is None
    assert not caplog.messages
