"""One name names one thing: no two public classes of the package share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Names that the public interface fixes, each with its two classes and the reason.
SHARED = {
    # Horovod's name for casts, and the base class of the methods: tfdist.Compression and
    # tfdist.compression.Compression.
    "Compression": {"tfdist/compression/casts.py", "tfdist/compression/methods.py"},
    # A saved model names its layers by these: of Keras 3, and of tf_keras.
    "Embedding": {"tfdist/embedding/layer.py", "tfdist/embedding/legacy_layer.py"},
    "FieldWiseEmbedding": {"tfdist/embedding/layer.py", "tfdist/embedding/legacy_layer.py"},
}


def public_classes() -> dict[str, set[str]]:
    """The files that define each public class of a module, by the class's name."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in ("tfdist", "strategies", "ops"):
        for path in (ROOT / folder).rglob("*.py"):
            # The symlinks in tfdist/ show the other two folders again.
            if path.resolve() != path:
                continue
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].add(path.relative_to(ROOT).as_posix())
    return found


def test_each_public_class_has_a_name_of_its_own() -> None:
    shared = {name: files for name, files in public_classes().items() if len(files) > 1}
    assert shared == SHARED
