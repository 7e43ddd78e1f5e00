"""Builds a Dockerfile without Docker: its steps run in bare chroots that mmdebstrap makes.

Each `FROM python:3.11-slim` is a minimal Debian 12 with its own Python 3.11 and pip, under the name
`python`. The steps are the file's, word for word.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

IS_MISSING = os.geteuid() != 0 or not all(map(shutil.which, ("mmdebstrap", "chroot", "unshare")))
_BASE = "python:3.11-slim"
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
# Debian's Python leaves packages to apt, the image's does not. The image calls it `python`.
_AS_IN_THE_IMAGE = (
    "rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && ln -s python3 /usr/bin/python"
    " && python -c 'import sys; assert sys.version_info[:2] == (3, 11), sys.version'"
)


def instructions(text: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile with their arguments."""
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def context(folder: Path) -> list[Path]:
    """Returns the files below a folder that its .dockerignore lets through."""
    rules = (folder / ".dockerignore").read_text().splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    assert rules[0] == "*", "expected the list of copied files"
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    dropped = [rule for rule in rules[1:] if not rule.startswith("!")]

    def is_dropped(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        for rule in dropped:
            if rule.startswith("**/") and any(fnmatch(part, rule[3:]) for part in parts):
                return True
            if Path(*parts).is_relative_to(rule):
                return True
        return False

    found: list[Path] = []
    for name in kept:
        top = folder / name
        assert top.exists(), f".dockerignore: no {name}"
        # Symlinks are copied as such, and not followed.
        below = [top] if not top.is_dir() else [p for p in top.rglob("*")]
        found += [p for p in below if (p.is_symlink() or p.is_file()) and not is_dropped(p)]
    return found


class Stage:
    """A stage of the build: a root folder, and what the next step runs with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        self.arguments: dict[str, str] = {}
        self.folder, self.user, self.entrypoint = "/", "0", ["python"]


class Build:
    """A build in progress.

    Args:
      folder: for the roots.
      source: the build context, with the Dockerfile.
      shared: folders of this machine that the steps may read, such as a package index.
    """

    def __init__(self, folder: Path, source: Path, shared: list[Path]) -> None:
        self._folder, self._source, self._shared = folder, source, shared
        self._base = folder / "base.tar"
        self.stages: dict[str, Stage] = {}

    def run(self) -> Stage:
        """Runs all steps; returns the last stage."""
        mmdebstrap = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}"]
        _call([*mmdebstrap, "bookworm", str(self._base)])
        stage: Stage | None = None
        for word, rest in instructions((self._source / "Dockerfile").read_text()):
            if word == "FROM":
                stage = self._begin(rest)
                continue
            assert stage is not None, "expected FROM first"
            self._step(stage, word, rest)
        assert stage is not None
        return stage

    def execute(self, stage: Stage, words: list[str], user: str | None = None) -> str:
        """Runs a program in a stage, in namespaces of its own; returns what it has printed."""
        root = shlex.quote(str(stage.root))
        mounts = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        for path in self._shared:
            target = Path(f"{stage.root}{path}")
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            mounts.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(target))}")
        with contextlib.suppress(OSError):
            shutil.copy("/etc/resolv.conf", stage.root / "etc/resolv.conf")
        owner = user or stage.user
        variables = [f"{k}={v}" for k, v in {**stage.environment, **stage.arguments}.items()]
        pip = [f"{k}={v}" for k, v in os.environ.items() if k.startswith("PIP_")]
        inner = shlex.join(
            ["sh", "-c", f'cd {shlex.quote(stage.folder)} && exec "$@"', "-", *words]
        )
        enter = shlex.join(
            [
                "chroot",
                f"--userspec={owner}:{owner}",
                str(stage.root),
                "env",
                "-i",
                *variables,
                *pip,
            ]
        )
        script = " && ".join([*mounts, f"exec {enter} {inner}"])
        return _call(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script])

    def _begin(self, rest: str) -> Stage:
        image, *name = re.split(r"\s+AS\s+", rest, flags=re.IGNORECASE)
        assert image == _BASE, f"expected {_BASE}, received {image}"
        root = self._folder / f"stage-{len(self.stages)}"
        root.mkdir()
        _call(["tar", "-xf", str(self._base), "-C", str(root), "--exclude=./dev/*"])
        stage = Stage(root)
        self.stages[name[0] if name else str(len(self.stages))] = stage
        self.execute(stage, ["sh", "-c", _AS_IN_THE_IMAGE])
        return stage

    def _step(self, stage: Stage, word: str, rest: str) -> None:
        if word == "RUN":
            self.execute(stage, ["sh", "-c", rest])
        elif word == "COPY":
            self._copy(stage, shlex.split(rest))
        elif word == "ARG":
            name, _, default = rest.partition("=")
            stage.arguments[name] = default
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.environment[name] = value
        elif word == "WORKDIR":
            stage.folder = rest
            Path(f"{stage.root}{rest}").mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word == "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        else:
            raise AssertionError(f"{word}: this build does not know it")

    def _copy(self, stage: Stage, words: list[str]) -> None:
        origin = None
        if words[0].startswith("--from="):
            origin = self.stages[words.pop(0).removeprefix("--from=")].root
        source, target = words
        place = Path(f"{stage.root}{target}")
        if origin is not None:
            shutil.copytree(f"{origin}{source}", place, symlinks=True)
            return
        assert source == ".", f"expected the whole context, received {source}"
        for path in context(self._source):
            copy = place / path.relative_to(self._source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy, follow_symlinks=False)


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    shown = f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, shown[-6000:]
    return done.stdout
