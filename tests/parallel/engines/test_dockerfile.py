"""The Dockerfile's steps in bare chroots, and the image that they make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallel.engines import dockerfile

ROOT = Path(__file__).parents[3]
# Sources that pip needs beside its variables: its configuration, and indexes that are folders.
_FOLDERS = ("global.extra-index-url", "global.index-url", "global.find-links", ":env:.find-links")


def shared() -> list[Path]:
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = {Path("/etc/pip.conf"), Path("/etc/xdg/pip"), Path("/etc/ssl/certs")}
    for line in shown.stdout.splitlines():
        name, _, value = line.partition("=")
        if name in _FOLDERS:
            words = value.strip("'").split()
            found |= {Path(word.removeprefix("file://").removesuffix("/simple")) for word in words}
    return sorted(path for path in found if path.is_absolute() and path.exists())


def test_only_sources_are_copied():
    names = {str(path.relative_to(ROOT)) for path in dockerfile.context(ROOT)}
    assert {"setup.py", "tfdist/__init__.py", "ops/Makefile", "tfdist/strategies"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "ops/build" in name]
    assert not [name for name in names if name.startswith(("tests/", ".git", "docs/"))]


# It installs Debian packages as root, and compiles the op library once more.
@pytest.mark.long(covered_by="test_only_sources_are_copied")
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    dockerfile.IS_MISSING, reason="needs root and a Debian package: apt-get install mmdebstrap"
)
def test_the_image(tmp_path):
    build = dockerfile.Build(tmp_path, ROOT, shared())
    image = build.run()
    assert image.user == "10001" and image.entrypoint == ["python"]
    program = (
        "import os, tfdist; from tfdist.ops import library; print(os.getuid(), tfdist.__file__)"
    )
    user, file = build.execute(image, [*image.entrypoint, "-c", program]).split()[-2:]
    assert user == "10001" and "-packages/tfdist/" in file
    shown = build.execute(image, ["tfdist", "env"])
    assert "trains alone" in shown
    for tool in ("g++", "make"):
        assert not list(image.root.glob(f"usr/bin/{tool}"))
