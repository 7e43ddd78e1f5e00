"""Functions that a package calls although the package that provides them is above it.

`tfdist.ops` imports neither `tfdist.job` nor `tfdist.embedding`, which are built on it, but a
collective without a communicator needs the job's, and `tfdist.ops.embedding_lookup` is public. Such
a function is asked for here by name. `tfdist/__init__.py`, which runs before any other module, says
where each one is defined. The module that defines it is imported on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_homes: dict[str, tuple[str, str]] = {}


def register(name: str, module: str, function: str | None = None) -> None:
    """Says where a function is defined.

    Args:
      name: the name that callers ask for.
      module: the module's full name.
      function: the function's name in the module; `None` means `name`.
    """
    _homes[name] = (module, function or name)


def provider(name: str) -> Callable[..., Any]:
    """Returns the function that was registered as `name`."""
    module, function = _homes[name]
    return getattr(importlib.import_module(module), function)
