"""Each test has queues of its own."""

from support.feeds import own_feeds

__all__ = ["own_feeds"]
