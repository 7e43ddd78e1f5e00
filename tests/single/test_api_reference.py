"""The API reference has an entry for every public name, and none for a name that does not exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import tfdist
from tfdist import errors

API = Path(__file__).parents[2] / "docs/reference/api"
MODULES = [
    *("tfdist", "tfdist.callbacks", "tfdist.compression", "tfdist.data", "tfdist.elastic"),
    *("tfdist.embedding", "tfdist.horovod", "tfdist.layers", "tfdist.layers.legacy"),
    *("tfdist.ops", "tfdist.ray", "tfdist.rules", "tfdist.serving"),
]


def directives() -> set[str]:
    """The names whose docstrings the pages show."""
    return {
        name
        for page in API.glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }


def aliases() -> dict[str, str]:
    """The names that the pages call the same object as another one."""
    pairs = [
        pair
        for page in API.glob("*.md")
        for pair in re.findall(
            r"^\| `([\w.]+)` \| \[`([\w.]+)`\]\(", page.read_text(), re.MULTILINE
        )
    ]
    return dict(pairs)


def resolved(name: str) -> object:
    parts = name.split(".")
    value: object = tfdist
    for last, part in enumerate(parts[1:], start=2):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(parts[:last]))
    return value


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry(module: str) -> None:
    # A package of the root has a page of its own.
    packages = (*MODULES, "tfdist.errors")
    pages = {name for name in packages if (API / f"{name.removeprefix('tfdist.')}.md").exists()}
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert public - directives() - aliases().keys() - pages == set()


def test_every_exception_has_an_entry() -> None:
    kinds = {
        f"tfdist.errors.{name}"
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    assert kinds - directives() == set()


def test_the_list_of_modules_is_complete() -> None:
    # tfdist.errors has no list of names, and the names of tfdist.estimator are another package's.
    listed = {module.removeprefix("tfdist.") for module in MODULES} | {"errors", "estimator"}
    public = {name for name in tfdist.__all__ if (API / f"{name}.md").exists()}
    assert public <= listed
    index = (API / "index.md").read_text()
    missing = [page.name for page in API.glob("*.md") if f"({page.name})" not in index]
    assert missing == ["index.md"]


def test_every_entry_exists() -> None:
    for name in directives():
        resolved(name)
    for name, other in aliases().items():
        assert resolved(name) is resolved(other), name
        assert other in directives() | {f"tfdist.{page.stem}" for page in API.glob("*.md")}, name
