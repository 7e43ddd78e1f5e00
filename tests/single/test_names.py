"""One name names one thing: no two public classes of the package share a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Names that the public interface fixes, each with its two classes and the reason.
SHARED = {
    # Horovod's name for casts, and the base class of the methods: tfdist.Compression and
    # tfdist.compression.Compression.
    "Compression": ["tfdist/compression/casts.py", "tfdist/compression/methods.py"],
    # A saved model names its layers by these: of Keras 3, and of tf_keras.
    "Embedding": ["tfdist/embedding/layer.py", "tfdist/embedding/legacy_layer.py"],
    "FieldWiseEmbedding": ["tfdist/embedding/layer.py", "tfdist/embedding/legacy_layer.py"],
}


def classes_of_a_module(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """The classes at the top of a module, and the classes below an `if` or a `try` there."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            yield from classes_of_a_module(node)


def public_classes() -> dict[str, list[str]]:
    """The files that define each public class of a module, by the class's name."""
    found: dict[str, list[str]] = {}
    for folder in ("tfdist", "strategies", "ops"):
        for path in (ROOT / folder).rglob("*.py"):
            # The symlinks in tfdist/ show the other two folders again.
            if path.resolve() != path:
                continue
            for node in classes_of_a_module(ast.parse(path.read_text())):
                if not node.name.startswith("_"):
                    file = path.relative_to(ROOT).as_posix()
                    found.setdefault(node.name, []).append(file)
    return found


def test_each_public_class_has_a_name_of_its_own() -> None:
    classes = public_classes()
    assert len(classes) > 100
    shared = {name: sorted(files) for name, files in classes.items() if len(files) > 1}
    assert shared == SHARED


def test_classes_below_conditions_count() -> None:
    text = "if A:\n  class B: pass\nelse:\n  class B: pass\nclass C:\n  class D: pass\n"
    assert [node.name for node in classes_of_a_module(ast.parse(text))] == ["B", "B", "C"]
