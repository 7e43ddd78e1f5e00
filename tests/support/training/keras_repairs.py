"""Puts Keras's own behaviour back, without one of tfdist's repairs.

`tfdist.keras.registry` lists the installed replacements. A test of a repair undoes it and shows
that Keras fails in the known way; `test_keras_registry.py` looks for `without("NAME")` to see that
each repair has such a test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from tfdist import keras
from tfdist.keras import registry


def repaired() -> list[registry.Replacement]:
    """All repairs and hooks of strategies for the installed Keras."""
    import keras as library

    release = tuple(int(part) for part in library.__version__.split(".")[:2])
    return [r for r in registry.registered(keras.FOR_STRATEGIES) if r.is_for(release)]


def replacements_of(target: object) -> list[registry.Replacement]:
    """The replacements of a function of Keras, from the outermost on."""
    found = []
    while hasattr(target, "__wrapped__"):
        if hasattr(target, "tfdist_replacement"):
            found.append(target.tfdist_replacement)
        target = target.__wrapped__
    return found


def without(
    name: str, set_attribute: Callable = setattr, delete_attribute: Callable = delattr
) -> None:
    """Undoes a repair that is installed; others of the same functions stay.

    Args:
      name: the decorated function's.
      set_attribute: as `setattr`; `monkeypatch.setattr` undoes it for one test only.
      delete_attribute: as `delattr`.
    """
    undone = [r for r in registry.installed() if r.function.__name__ == name]
    assert undone, f"no repair of this name is installed: {name}"
    for replacement in undone:
        owner, attribute = replacement.owner, replacement.name
        current = getattr(owner, attribute)
        if replacement.adds:
            delete_attribute(owner, attribute)
            continue
        if not callable(current):
            set_attribute(owner, attribute, current._module)
            continue
        others = [r for r in reversed(replacements_of(current)) if r is not replacement]
        set_attribute(owner, attribute, inspect.unwrap(current))
        for other in others:
            set_attribute(owner, attribute, other.around(getattr(owner, attribute)))
