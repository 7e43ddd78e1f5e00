"""The files of an output folder, linked and synced so that a kill leaves all or nothing of one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.errors import PredictionError

JOB, REJECTED = "_job", "_rejected"
MANIFEST, SUCCESS = "_manifest.json", "_SUCCESS"
NOTE_BYTES = 32  # of the first line of a claim
_ROOMS = ("workers", "claims", "staged", "records")


class OutputFolder:
    """The paths of a job's files.

    Args:
      path: the folder.
      owner: the id of this worker, in the names of its staged files.
    """

    def __init__(self, path: str | os.PathLike[str], owner: str = "") -> None:
        self.owner = owner
        self.path = Path(path).absolute()
        self.job = self.path / JOB
        self.rejected = self.path / REJECTED
        self.workers, self.claims, self.staged, self.records = (self.job / x for x in _ROOMS)
        self.description = self.job / "job.json"
        self.manifest, self.success = self.path / MANIFEST, self.path / SUCCESS

    def open(self) -> None:
        """Makes the folder, if it is new.

        Raises:
          PredictionError: it has files that no prediction has written.
          OSError: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise PredictionError(
                f"{self.path}: expected a new or empty folder, or the output of this job, found a "
                "file there"
            ) from error
        # Other workers may be making them.
        foreign = sorted(set(os.listdir(self.path)) - {JOB})
        if foreign and not self.job.is_dir():
            raise PredictionError(
                f"{self.path}: expected a new or empty folder, or the output of this job, found "
                f"{len(foreign)} other files, such as {foreign[0]!r}"
            )
        for room in _ROOMS:
            (self.job / room).mkdir(parents=True, exist_ok=True)

    def stage(self, name: str) -> Path:
        """Returns the path of a new file, which no other worker uses."""
        return self.staged / f"{name}.{self.owner}.{secrets.token_hex(4)}"

    def staged_files(self) -> Iterator[tuple[Path, str]]:
        """Yields the staged files, and their owners."""
        for name in os.listdir(self.staged):
            parts = name.split(".")
            if len(parts) > 2:
                yield self.staged / name, parts[-2]

    def record(self, part: int) -> Path:
        """Returns the path of a part's record."""
        return self.records / f"{part:06d}.json"

    def claim(self, part: int) -> Path:
        """Returns the path of a part's claim."""
        return self.claims / f"{part:06d}"

    def claimed(self) -> dict[int, str]:
        """Returns the parts that are claimed, with the ids of their owners; see `claims`."""
        found = {}
        for name in os.listdir(self.claims):
            if not name.isdigit():
                continue
            try:
                owner = json.loads((self.claims / name).read_bytes()[NOTE_BYTES:])["owner"]
            except (OSError, ValueError, KeyError, TypeError):  # it ends, or is damaged
                continue
            if owner:
                found[int(name)] = owner
        return found

    def name_of_worker(self, id: str) -> str:
        """Returns a worker's name, if its file is there, else its id."""
        try:
            return (self.workers / id).read_text(errors="replace")
        except OSError:
            return id

    def finished(self) -> set[int]:
        """Returns the parts that are committed."""
        return {int(name[:-5]) for name in os.listdir(self.records) if name.endswith(".json")}

    def check_links(self) -> None:
        """Tries hard links. Its owner is a living worker, else others remove the staged files.

        Raises:
          PredictionError: the file system has none.
          OSError: the folder cannot be written.
        """
        probe, link = self.stage("probe"), self.stage("link")
        try:
            probe.touch()
            is_new = link_new(probe, link)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            raise PredictionError(
                f"{self.path}: expected a file system with hard links, which make a part count "
                f"once; received one without ({error}), such as an object store"
            ) from error
        finally:
            for path in (probe, link):
                path.unlink(missing_ok=True)
        assert is_new


def link_new(staged: Path, path: Path) -> bool:
    """Gives a file its final name, unless another file has it; returns whether it has.

    The file keeps its first name too.
    """
    try:
        os.link(staged, path)
    except FileExistsError:
        # A lost answer of a network file system is asked for again, and finds its own link.
        return is_same(staged, path)
    return True


def is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one existing file."""
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:
        return False


def write_json(path: Path, content: Any) -> None:
    """Writes a new file of JSON, and syncs it."""
    with open(path, "x") as file:
        json.dump(content, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> Any:
    """Returns the content of a file of JSON.

    Raises:
      FileNotFoundError: there is no such file.
      PredictionError: it is damaged.
    """
    text = path.read_text()
    try:
        return json.loads(text)
    except ValueError as error:
        raise PredictionError(f"{path} is damaged: {error}") from None


def sync(path: Path) -> None:
    """Makes a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if path.is_dir():
            with contextlib.suppress(OSError):  # some file systems cannot
                os.fsync(descriptor)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(staged: Path, path: Path) -> bool:
    """Renames a staged file, unless another worker has done so; returns whether it is there."""
    try:
        os.replace(staged, path)
    except FileNotFoundError:
        return path.exists()
    return True
