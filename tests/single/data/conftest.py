"""The iterators of these tests are collected early, and each test has queues of its own."""

from support.feeds import own_feeds
from support.garbage import collect_garbage

__all__ = ["collect_garbage", "own_feeds"]
