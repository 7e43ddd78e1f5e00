"""Exceptions and their tracebacks."""

from __future__ import annotations

from collections.abc import Iterator


def followed(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception, and the exceptions that it was raised from or while handling.

    `raise ... from None` hides some of them only from a printed traceback.
    """
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left.extend(next for next in (each.__context__, each.__cause__) if next is not None)
