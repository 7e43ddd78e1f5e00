"""Calls a function when a module has been imported, which may be later or never."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence


def after_import(name: str, call: Callable[[], None]) -> None:
    """Calls a function once a module is imported; at once, if it is.

    Args:
      name: of the module.
      call: may import it. The import raises the call's exception.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watcher(name, call))


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds one module as the finders after this one do.

    Args:
      name: of the module.
      call: see `after_import`.
    """

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # for the call below
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module: types.ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
