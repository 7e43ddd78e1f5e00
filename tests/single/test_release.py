"""Defects of a release that scripts/release.py finds, in a tree of its own."""

from __future__ import annotations

import importlib.util
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "release.py"
CHANGELOG = "# Changelog\n\n## [{version}] - 2026-11-28\n\n- All.\n"


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a tree with two modules and a whole release of it."""
    spec = importlib.util.spec_from_file_location("release", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in ("tfdist/__init__.py", "ops/library.py"):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(f"# {name}")
    for folder in ("dist", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text(f"`tfdist-{module.VERSION}.tar.gz`")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format(version=module.VERSION))
    write_wheel(module)
    with tarfile.open(tmp_path / "dist" / f"tfdist-{module.VERSION}.tar.gz", "w:gz") as archive:
        add(archive, f"tfdist-{module.VERSION}/PKG-INFO", b"made")
        add(archive, f"tfdist-{module.VERSION}/ops/library.py", b"# ops/library.py")
    return module


def write_wheel(module: ModuleType, without: str = "", library: str = "# ops/library.py") -> None:
    name = f"tfdist-{module.VERSION}-py3-none-manylinux_2_35_x86_64.whl"
    (_, low), (_, high) = module.VERSIONS["MIN_TENSORFLOW"], module.VERSIONS["MAX_TENSORFLOW"]
    with zipfile.ZipFile(module.ROOT / "dist" / name, "w") as archive:
        archive.writestr("tfdist/", "")
        archive.writestr("tfdist/__init__.py", "# tfdist/__init__.py")
        archive.writestr("tfdist/ops/library.py", library)
        for minor in range(low, high + 1):
            if f"2.{minor}" != without:
                archive.writestr(f"tfdist/ops/libtfdist_ops.tf2.{minor}.so", "a library")


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


CHECKS = ("of_the_changelog", "of_the_documentation", "of_the_wheel", "of_the_sdist")


def problems(module: ModuleType) -> list[str]:
    return [problem for check in CHECKS for problem in getattr(module, check)()]


def test_a_whole_release(release: ModuleType) -> None:
    assert problems(release) == []


def write(name: str, text: str) -> Callable[[ModuleType], None]:
    return lambda module: (module.ROOT / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (write("CHANGELOG.md", "## [Unreleased]\n"), "received a part [Unreleased]"),
        (write("CHANGELOG.md", CHANGELOG.format(version="0.0.1")), "received 0.0.1"),
        (write("docs/page.md", "`tfdist-9.9.9.tar.gz`"), "docs/page.md: names tfdist-9.9.9"),
        (lambda module: write_wheel(module, without="2.18"), "no op library for TensorFlow 2.18"),
        (lambda module: write_wheel(module, library="other"), "tfdist/ops/library.py is not that"),
        (write("ops/later.py", ""), "manylinux_2_35_x86_64.whl: tfdist/ops/later.py is absent"),
        (write("dist/other.whl", ""), "expected one wheel"),
        (write("ops/library.py", "# newer"), "tar.gz: ops/library.py is not"),
        (write("dist/other.tar.gz", ""), "received other.tar.gz"),
    ],
)
def test_what_is_wrong(
    release: ModuleType, damage: Callable[[ModuleType], None], expected: str
) -> None:
    damage(release)
    assert expected in "\n".join(problems(release))
