"""The newest output of a job, in a file of bounded size, for `tfdist logs`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tfdist.launch.output import LogFile

MAX_BYTES = 8 << 20


class KeptOutput:
    """A file of lines that begins anew when it is full; the full one is kept beside it, once.

    A file that cannot be written is left out: the job continues.

    Args:
      path: the file; the full one has its name and ".1".
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._file: LogFile | None = None
        self._open()

    def line(self, text: bytes) -> None:
        """Appends a line."""
        if self._file is None:
            return
        self._file.write(text + b"\n")
        self._size += len(text) + 1
        if self._size >= MAX_BYTES:
            self._file.close()
            with contextlib.suppress(OSError):
                os.replace(self._path, f"{self._path}.1")
            self._open()

    def close(self) -> None:
        """Closes the file; later lines are left out, such as an agent's last words."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self._size = 0
        try:
            self._file = LogFile(self._path)
        except OSError:
            self._file = None
