"""Says what of the installed TensorFlow and Keras does not fit tfdist; for scripts/canary.

    python scripts/canary.py

One line for each internal name, signature and op that is not as tfdist knows it. A line that ends
in "(known)" is of a change that tfdist works with. The exit code is 1 if there is any other line.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfdist import keras as repairs
from tfdist.data.cut import by_row
from tfdist.keras import registry

ROOT = Path(__file__).resolve().parents[1]
UPSTREAM = ("tensorflow.", "keras.", "tf_keras.")
INTERNALS = "tfdist.internals."


def moved_names() -> Iterator[str]:
    """The names in tfdist's lists of internals that cannot be imported."""
    for path in sorted((ROOT / "tfdist" / "internals").glob("*.py")):
        tree = ast.parse(path.read_text())
        blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Try | ast.If)]
        tried = {id(node) for block in blocks for node in ast.walk(block)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(UPSTREAM):
                continue
            for alias in node.names:
                if (problem := _missing(node.module or "", alias.name)) is not None:
                    yield f"{problem}{' (known)' if id(node) in tried else ''}"


def _missing(module: str, name: str) -> str | None:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        return f"{module}.{name}: {error}"
    if hasattr(found, name) or _is_module(f"{module}.{name}"):
        return None
    similar = [n for n in vars(found) if name in n or n in name]
    similar += difflib.get_close_matches(name, vars(found), n=3)
    hint = f"; it has {', '.join(sorted(set(similar)))}" if similar else ""
    return f"{module}.{name} is gone{hint}"


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def missing_attributes() -> Iterator[str]:
    """The attributes of internal modules and classes that tfdist's sources ask for by name."""
    folders = ("tfdist", "strategies", "ops")
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(INTERNALS):
                for alias in node.names:
                    yield from _missing_of(node.module or "", alias, tree, path)


def _missing_of(module: str, alias: ast.alias, tree: ast.AST, path: Path) -> Iterator[str]:
    try:
        owner = getattr(importlib.import_module(module), alias.name)
    except (ImportError, AttributeError):
        return  # told by `moved_names`
    if not isinstance(owner, types.ModuleType | type):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if (
            isinstance(node.ctx, ast.Load)
            and node.value.id == (alias.asname or alias.name)
            and not hasattr(owner, node.attr)
        ):
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield f"{owner.__name__}.{node.attr} is gone; {place} uses it"


def changed_functions() -> Iterator[str]:
    """The functions that tfdist replaces, and that are gone or have other parameters."""
    release = tuple(int(part) for part in keras.__version__.split(".")[:2])
    for module in repairs.ALL:
        try:
            replacements = registry.registered([module])
        except (ImportError, AttributeError) as error:
            yield f"{module} cannot be imported: {error}"
            continue
        for each in replacements:
            problem = each.mismatch()
            if problem is not None and each.is_for(release):
                yield f"{each.target} {problem}"
            elif problem is not None and each.until is not None and each.is_for(_last(each.until)):
                yield f"{each.target} {problem}; it is replaced up to Keras {each.until} (known)"


def _last(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def changed_methods() -> Iterator[str]:
    """The methods of TensorFlow's classes that tfdist overrides with other parameters."""
    importlib.import_module("tfdist.strategies")
    for name in sorted(sys.modules):
        module = sys.modules[name]
        if not name.startswith("tfdist.") or not isinstance(module, types.ModuleType):
            continue
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == name:
                yield from _changed_in(kind)


def _changed_in(kind: type) -> Iterator[str]:
    for method, own in vars(kind).items():
        if not inspect.isfunction(own) or method == "__init__":
            continue
        of_upstream = (base for base in kind.__mro__ if base.__module__.startswith(UPSTREAM))
        bases = [base for base in of_upstream if method in vars(base)]
        theirs = vars(bases[0])[method] if bases else None
        if not inspect.isfunction(theirs):
            continue
        upstream = inspect.signature(theirs).parameters
        # Further parameters are for callers of ours.
        mine = [
            parameter
            for parameter in inspect.signature(own).parameters.values()
            if parameter.name in upstream or parameter.default is inspect.Parameter.empty
        ]
        if not registry.accepts(mine, list(upstream.values())):
            yield (
                f"{kind.__module__}.{kind.__qualname__}.{method}{inspect.signature(own)} overrides "
                f"{bases[0].__module__}.{bases[0].__qualname__}'s {inspect.signature(theirs)}"
            )


def missing_ops() -> Iterator[str]:
    """The ops that are cut by row, and that TensorFlow no longer has."""
    for name in sorted(by_row.OPS):
        if op_def_registry.get(name) is None:
            yield f"op {name} is gone"


def main() -> None:
    """Prints all lines."""
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}")
    failed = False
    checks = (
        moved_names,
        missing_attributes,
        changed_functions,
        changed_methods,
        missing_ops,
    )
    for check in checks:
        lines = list(check())
        print(f"{check.__name__.replace('_', ' ')}: {len(lines)}")
        for line in lines:
            failed |= not line.endswith("(known)")
            print(f"  {line}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
