"""Claims: which worker computes which part, and where in it.

A claim is a file of one line with a note, which its owner overwrites before each batch, and a line
of JSON:

    row 300
    {"owner": "3fa2...-4711-9c...", "deaths": [["fast", 256], ["row", 300]]}

It has 32 bytes in its first line (`folder.NOTE_BYTES`).

A note is written without a sync: it outlives the process, not the machine. A claim whose owner is
dead is replaced by another worker, which keeps the deaths. Two workers that replace it at the same
time both compute the part; the first to commit it counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path

from tfdist.prediction.deaths import Deaths
from tfdist.prediction.folder import NOTE_BYTES, OutputFolder, link_new
from tfdist.prediction.workers import LivingWorker

_NOTE = NOTE_BYTES


@dataclasses.dataclass(frozen=True)
class _Content:
    owner: str
    deaths: Deaths
    note: tuple[str, int] | None


class Claim:
    """This worker's claim of a part.

    Args:
      part: its number.
      path: of the claim.
      deaths: of its former owners.
      descriptor: of the open file.
    """

    def __init__(self, part: int, path: Path, deaths: Deaths, descriptor: int) -> None:
        self.part, self.deaths = part, deaths
        self._path, self._descriptor = path, descriptor

    def note(self, kind: str, first: int) -> None:
        """Notes the first record in work; see `deaths`."""
        os.pwrite(self._descriptor, _note(kind, first), 0)

    def close(self) -> None:
        """Closes the file; the claim stays."""
        os.close(self._descriptor)


class Claims:
    """The claims of a job's parts.

    Args:
      folder: the job's.
      worker: this process.
      batch_size: records of a batch.
    """

    def __init__(self, folder: OutputFolder, worker: LivingWorker, batch_size: int) -> None:
        self._folder, self._worker, self._batch_size = folder, worker, batch_size

    def take(self, part: int) -> Claim | None:
        """Takes a part; returns `None` if a living worker has it."""
        return self._take(part, self._folder.claim(part))

    def take_name(self, name: str) -> Claim | None:
        """Takes another piece of work that one worker does."""
        return self._take(0, self._folder.claims / name)

    def release(self, claim: Claim, *, is_done: bool) -> None:
        """Gives a claim back.

        Args:
          claim: of this worker; it may have lost it.
          is_done: whether the work is done; else the deaths are kept for the next owner.
        """
        claim.close()
        content = self._read(claim._path)
        if content is None or content.owner != self._worker.id:
            return
        if is_done or not claim.deaths.all:
            claim._path.unlink(missing_ok=True)
        else:
            os.replace(self._written("", claim.deaths), claim._path)

    def _take(self, part: int, path: Path) -> Claim | None:
        deaths = Deaths(self._batch_size)
        former = self._read(path)
        if former is None:
            staged = self._written(self._worker.id, deaths)
            try:
                if not link_new(staged, path):
                    return None
            finally:
                staged.unlink(missing_ok=True)
        else:
            if former.owner and self._worker.lives(former.owner):
                return None
            deaths = former.deaths
            if former.owner and former.note is not None:
                deaths = deaths.and_one(*former.note)
            os.replace(self._written(self._worker.id, deaths), path)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR)
            content = self._parsed(os.pread(descriptor, 1 << 20, 0))
            if content is not None and content.owner == self._worker.id:
                return Claim(part, path, deaths, descriptor)
            os.close(descriptor)
        return None

    def _written(self, owner: str, deaths: Deaths) -> Path:
        staged = self._folder.stage("claim")
        listed = [[death.kind, death.first] for death in deaths.all]
        line = json.dumps({"owner": owner, "deaths": listed})
        staged.write_bytes(b" " * (_NOTE - 1) + b"\n" + line.encode() + b"\n")
        return staged

    def _read(self, path: Path) -> _Content | None:
        """Returns a claim's content; `None` without one."""
        try:
            return self._parsed(path.read_bytes())
        except FileNotFoundError:
            return None

    def _parsed(self, content: bytes) -> _Content:
        """Returns a claim's content; a damaged one, as a lost machine leaves it, has no owner."""
        deaths = Deaths(self._batch_size)
        try:
            found = json.loads(content[_NOTE:])
            for kind, first in found["deaths"]:
                deaths = deaths.and_one(kind, first)
            note = content[:_NOTE].split()
            noted = (note[0].decode(), int(note[1])) if note else None
            return _Content(str(found["owner"]), deaths, noted)
        except (ValueError, TypeError, KeyError, IndexError):
            return _Content("", Deaths(self._batch_size), None)


def _note(kind: str, first: int) -> bytes:
    return f"{kind} {first}".encode().ljust(_NOTE - 1) + b"\n"
