"""Checks that dist/ is a release of this commit; prints the commands that publish it.

    scripts/release

It looks at the version, the changelog, the tag, the wheel, the sdist and the names of both in the
documentation. One line for each problem; the exit code is then 1.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = runpy.run_path(str(ROOT / "tfdist" / "_version.py"))
VERSION = VERSIONS["__version__"]
PACKAGES = {"tfdist/ops/": "ops/", "tfdist/strategies/": "strategies/"}
WHEEL = re.compile(rf"tfdist-{re.escape(VERSION)}-py3-none-manylinux_\d+_\d+_x86_64\.whl")


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def of_the_commit() -> Iterator[str]:
    """Problems with the state of the repository."""
    if changed := git("status", "--porcelain"):
        yield f"files that are not committed: {', '.join(changed.split()[1::2])}"
    tagged = git("tag", "--list", f"v{VERSION}")
    if tagged and git("rev-list", "-n", "1", tagged) != git("rev-parse", "HEAD"):
        yield f"the tag {tagged} is of another commit; raise the version in tfdist/_version.py"


def of_the_changelog() -> Iterator[str]:
    """Problems with CHANGELOG.md."""
    headings = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if headings and headings[0][0] == "Unreleased":
        yield f"CHANGELOG.md: expected no changes above {VERSION}, received a part [Unreleased]"
        headings = headings[1:]
    if not headings or headings[0][0] != VERSION:
        received = headings[0][0] if headings else "none"
        yield f"CHANGELOG.md: expected the newest version to be {VERSION}, received {received}"
    elif not re.fullmatch(r" - \d{4}-\d\d-\d\d", headings[0][1]):
        yield f"CHANGELOG.md: expected [{VERSION}] - YYYY-MM-DD, received {headings[0][1]!r}"


def of_the_documentation() -> Iterator[str]:
    """Files of other versions that pages name."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for name, version in re.findall(r"(tfdist-(\d+\.\d+\.\d+)[^ `]*)", page.read_text()):
            if version != VERSION:
                yield f"{page.relative_to(ROOT)}: names {name}, of another version than {VERSION}"


def of_the_wheel() -> Iterator[str]:
    """Problems with the wheel: its name, its libraries, and files that differ from the tree's."""
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1 or not WHEEL.fullmatch(wheels[0].name):
        received = ", ".join(path.name for path in wheels) or "none"
        yield f"dist/: expected one wheel of {VERSION} for manylinux, received {received}"
        return
    with zipfile.ZipFile(wheels[0]) as archive:
        names = set(archive.namelist())
        (_, low), (_, high) = VERSIONS["MIN_TENSORFLOW"], VERSIONS["MAX_TENSORFLOW"]
        for minor in range(low, high + 1):
            if f"tfdist/ops/libtfdist_ops.tf2.{minor}.so" not in names:
                yield f"{wheels[0].name}: no op library for TensorFlow 2.{minor}"
        for name in sorted(names):
            if name.endswith(("/", ".so")) or ".dist-info/" in name:
                continue
            if _differs(_in_the_tree(name), archive.read(name)):
                yield f"{wheels[0].name}: {name} is not that of the tree"
        for name in _modules():
            if name not in names:
                yield f"{wheels[0].name}: {name} is absent"


def of_the_sdist() -> Iterator[str]:
    """Problems with the sdist: its name, and files that differ from the tree's."""
    archives = sorted((ROOT / "dist").glob("*.tar.gz"))
    name = f"tfdist-{VERSION}.tar.gz"
    if [path.name for path in archives] != [name]:
        received = ", ".join(path.name for path in archives) or "none"
        yield f"dist/: expected {name}, received {received}"
        return
    made = ("PKG-INFO", "setup.cfg", "tfdist.egg-info/")
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            path = member.name.partition("/")[2]
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and not path.startswith(made):
                if _differs(ROOT / path, content.read()):
                    yield f"{name}: {path} is not that of the tree"


def _modules() -> Iterator[str]:
    """The Python files of the tree's packages, as a wheel names them."""
    for package, folder in {"tfdist/": "tfdist/", **PACKAGES}.items():
        for parent, _, files in os.walk(ROOT / folder):  # does not follow the symlinks
            if Path(parent) == ROOT / folder or "__init__.py" in files:
                for name in sorted(files):
                    path = Path(parent, name).relative_to(ROOT / folder)
                    if path.suffix == ".py":
                        yield package + path.as_posix()


def _in_the_tree(name: str) -> Path:
    for package, folder in PACKAGES.items():
        if name.startswith(package):
            return ROOT / folder / name.removeprefix(package)
    return ROOT / name


def _differs(path: Path, content: bytes) -> bool:
    return not path.is_file() or path.read_bytes() != content


def main() -> None:
    """Prints the problems, or the commands."""
    checks = (of_the_commit, of_the_changelog, of_the_documentation, of_the_wheel, of_the_sdist)
    problems = [problem for check in checks for problem in check()]
    for problem in problems:
        print(f"scripts/release: {problem}")
    if problems:
        sys.exit(1)
    print(f"{VERSION} is ready. These commands publish it:")
    if not git("tag", "--list", f"v{VERSION}"):
        print(f"  git tag -a v{VERSION} -m 'tfdist {VERSION}'")
    print(f"  git push origin main v{VERSION}")
    print("  python3 -m pip install twine && python3 -m twine upload dist/*")


if __name__ == "__main__":
    main()
