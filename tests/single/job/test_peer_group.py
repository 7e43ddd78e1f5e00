"""A process joins one group of peers: a fixed job, an elastic one, or none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.errors import ClusterConfigError
from tfdist.job.process import Process

TWO = Cluster(workers=("a:1", "b:2"), task_index=1)


class Group(SimpleNamespace):
    """Peers without connections."""

    def leave(self, failure=None):
        self.left.append(failure)


def group(is_elastic, **fields):
    communicator = SimpleNamespace(waits=dict)
    peers = {"rank": 4, "size": 5, "generation": 3, "addresses": ("c:3",), "is_leader": False}
    return Group(is_elastic=is_elastic, communicator=communicator, left=[], **peers, **fields)


@pytest.fixture
def process():
    made = Process()
    made.enter(TWO, Settings(straggler_period=0))
    yield made
    made.leave()


def test_a_process_that_has_joined_nothing_says_what_its_cluster_says(process):
    assert (process.rank("f"), process.size("f")) == (1, 2)
    assert process.addresses("f") == ("a:1", "b:2")
    assert process.group is process.job is process.members is None


def test_a_member_of_an_elastic_job_says_what_its_group_says(process):
    members = group(is_elastic=True)
    assert process.join_elastic(TWO, lambda: members) is members
    assert process.join_elastic(TWO, pytest.fail) is members
    assert (process.rank("f"), process.size("f"), process.addresses("f")) == (4, 5, ("c:3",))
    assert process.group is process.members is members and process.job is None
    assert process.communicator("f") is members.communicator
    assert not process.is_alone("f")
    for joins in (lambda: process.join(TWO), lambda: process.join_elastic(Cluster.local(), group)):
        with pytest.raises(ClusterConfigError):
            joins()
    process.disconnect()
    assert members.left == [None] and process.group is None


def test_a_job_of_fixed_size_is_no_elastic_one(process, monkeypatch):
    job = group(is_elastic=False, cluster=TWO)
    monkeypatch.setattr("tfdist.job.job.Job", lambda cluster, settings: job)
    assert process.join(TWO) is job is process.join(TWO)
    assert process.group is process.job is job and process.members is None
    with pytest.raises(ClusterConfigError, match="cannot join another, elastic one"):
        process.join_elastic(TWO, pytest.fail)
    with pytest.raises(ClusterConfigError, match="cannot join another as worker 0"):
        process.join(Cluster(chief=("a:1",), workers=("b:2",)))
    process.disconnect()
    assert job.left == [None] and process.group is None


def test_a_process_alone_has_one_communicator_of_one_rank(process):
    process.enter(Cluster.local(), Settings())
    assert process.is_alone("f") and process.group is None
    communicator = process.communicator("f")
    assert (communicator.rank, communicator.size) == (0, 1)
    assert process.communicator("f") is communicator
