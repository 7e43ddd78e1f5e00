"""JSON with one value exchanged: bytes chosen at random are hardly ever JSON."""

import json
from typing import Any

_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 63, 10**400, 1e308, float("inf"), float("nan"), 0.5),
    *("", "\0", "\ud800", "\u202e", "1", "x" * 5000, [], {}, [[]], [None], {"": None}),
)


def altered(text: bytes, data: bytes) -> bytes:
    """Returns a JSON text in which one value is another one, or missing.

    Args:
      text: JSON.
      data: chooses: first the value's place, then what takes it: one of a list, or the rest of the
        bytes as text.
    """
    if len(data) < 2:
        return text
    whole = json.loads(text)
    places = list(_places(whole))
    container, key = places[data[0] % len(places)]
    choice = data[1] % (len(_ODD) + 2)
    if choice == len(_ODD):
        del container[key]
    elif choice > len(_ODD):
        container[key] = data[2:].decode(errors="replace")
    else:
        container[key] = _ODD[choice]
    return json.dumps(whole).encode()


def _places(container: Any) -> Any:
    """Yields each value's container and its key or index there."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    for key in keys:
        value = container[key]
        if isinstance(value, dict | list):
            yield from _places(value)
        yield container, key
