"""Each test has queues of its own."""

import pytest

from tfdist.data import feed
from tfdist.job import process


@pytest.fixture(autouse=True)
def own_feeds(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(feed, "current", feed.Feeds())
    yield
    process.current.disconnect()
