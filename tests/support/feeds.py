"""Data queues of its own for each test."""

from __future__ import annotations

import pytest

from tfdist.data import feed
from tfdist.job import process


@pytest.fixture(autouse=True)
def own_feeds(monkeypatch):
    """A process alone, without the queues of tests before."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(feed, "current", feed.Feeds())
    yield
    process.current.disconnect()
