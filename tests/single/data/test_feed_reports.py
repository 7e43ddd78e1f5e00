"""Reports of a feed whose pushes take longer than a lease: a server is away."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.data import feed
from tfdist.data.queue.client import TaskClient
from tfdist.data.queue.description import Description, Spec
from tfdist.data.queue.master import TaskMaster

LEASE = 10.0
SPEC = Spec("ranges", 8, 4, "", (), 1, False, 0, LEASE)


class Job:
    """A worker's feed of which one task is read and trained, and the master with a clock."""

    def __init__(self):
        self.now, self.flushes = 0.0, 0
        self.master = TaskMaster(Cluster.local(), clock=lambda: self.now)
        self.feeds = feed.Feeds()
        self.feeds.timeout = 60.0
        self.feeds.flush = self.flush
        call = feed._direct(self.master)
        self.feeds._client = TaskClient(
            Cluster.local(), "process", call, "this process", 5.0, self.feeds._closed
        )
        self.feed = self.feeds.feed("train", SPEC, lambda: Description(SPEC))
        self.stream = self.feed.begin_iteration()
        next(self.feed.tasks())
        self.stream.batch(4)

    def flush(self, seconds=3 * LEASE):
        """The pushes need three leases until they have arrived."""
        self.flushes += 1
        self.now += min(seconds, 3 * LEASE)
        self.master.queues()  # a look, at which leases that are due expire
        if self.now < 3 * LEASE:
            raise tf.errors.DeadlineExceededError(None, None, "no answer to a push")

    def counts(self):
        return self.master.queues()[0]


@pytest.fixture
def job():
    made = Job()
    yield made
    made.feeds._closed.set()


def test_a_report_that_waits_for_pushes_renews_the_leases(job):
    job.feed.train()
    job.feed.report()
    counts = job.counts()
    assert (counts["records"], counts["todo"]) == (4, 1)
    assert job.flushes > 3


def test_pushes_that_commit_are_not_waited_for(job):
    job.stream.tell(lambda batch: None)
    job.feed.train()
    job.feed.report()
    assert not job.flushes and len(job.counts()["pending"]) == 1


def test_what_is_given_back_is_not_reported_as_lost(job, caplog):
    """A training has ended before its input."""
    job.feed.end_iteration()
    assert not job.counts()["pending"]
    job.feed.report(leaves=True)
    assert not caplog.records
