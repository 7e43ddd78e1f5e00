"""The iterators of these tests are collected early."""

from support.garbage import collect_garbage

__all__ = ["collect_garbage"]
