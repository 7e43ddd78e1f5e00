"""Internals of TensorFlow and Keras, which a new release may break, are imported in few files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.errors import UnsupportedKerasError
from tfdist.internals.missing import told

ROOT = Path(__file__).parents[2]
INTERNAL = (
    "tensorflow.python",
    "keras.src",
    "tf_keras.src",
    "tensorflow_estimator.python",
    "keras_tuner.src",
)

# Other files that import internals, by folder, with the reason.
OTHERS = {
    # The whole package is repaired and driven from within.
    "tfdist/estimator/": "tensorflow_estimator",
    # Few processes import it.
    "tfdist/keras/hooks/tuners.py": "keras_tuner",
    # In a function, since it takes a release of Keras that may not have it.
    "tfdist/embedding/export.py": "keras.src",
}


def imports(path: Path) -> Iterator[str]:
    """The modules of internals that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in names if name.startswith(INTERNAL))


def sources() -> Iterator[Path]:
    for folder in ("tfdist", "strategies", "ops"):
        # The symlinks in tfdist/ show the other two folders again.
        yield from (path for path in (ROOT / folder).rglob("*.py") if path.resolve() == path)


def test_internals_are_imported_in_one_room() -> None:
    importing = {
        path.relative_to(ROOT).as_posix(): sorted(found)
        for path in sources()
        if (found := set(imports(path))) and path.parent.name != "internals"
    }
    unexpected = {
        file: names
        for file, names in importing.items()
        if not all(
            any(file.startswith(place) and name.startswith(what) for place, what in OTHERS.items())
            for name in names
        )
    }
    assert unexpected == {}
    unused = [place for place in OTHERS if not any(file.startswith(place) for file in importing)]
    assert unused == []


def test_each_name_of_the_list_is_used() -> None:
    used = {
        (node.module, alias.name)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tfdist.internals.")
        and path.parent.name != "internals"
        for alias in node.names
    }
    listed = {
        (f"tfdist.internals.{path.stem}", alias.asname or alias.name)
        for path in (ROOT / "tfdist" / "internals").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(INTERNAL)
        for alias in node.names
    }
    assert used == listed


def test_a_moved_name_is_told() -> None:
    expected = "Keras 9.9 has moved or removed internals .*cannot import name 'Moved' from 'keras"
    with pytest.raises(UnsupportedKerasError, match=expected):
        with told("keras.src", "Keras 9.9", UnsupportedKerasError):
            from keras.src.losses import Moved  # noqa: F401
    with pytest.raises(UnsupportedKerasError, match="No module named 'keras.src.moved'"):
        with told("keras.src", "Keras 9.9", UnsupportedKerasError):
            import keras.src.moved  # noqa: F401


def test_another_missing_module_is_its_own_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="^No module named 'no_module'$"):
        with told("keras.src", "Keras 9.9", UnsupportedKerasError):
            import no_module  # noqa: F401
