"""The package with an op library whose core reports what the sanitizers find, for `ps` tasks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.launching import PACKAGE

OPS = Path(__file__).resolve().parents[3] / "ops"
# Freed memory waits there before it is used again: MB, part of a task's memory.
QUARANTINE = 16
# Misuse in a loop of ours, so that no function is in between that the sanitizer replaces, such as
# memcpy: it reads a block of the C heap beyond its end, and at addresses of no int64.
_MISUSES = {"heap-buffer-overflow": "64, 0", "misaligned address": "256, 1"}
_MISUSE = """
import ctypes
from tfdist.ops import library
def read(size, offset):
    libc, function = ctypes.CDLL(None), library.c_api().tfdist_ps_server_of_ids
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    ids = ctypes.c_void_p(libc.malloc(size) + offset)
    function(ids, ctypes.c_uint64(16), 2, (ctypes.c_int32 * 16)())
"""


class SanitizedLibrary:
    """A copy of the package in a folder, with the sanitizers' library.

    Args:
      folder: it is made; reports come there too.
    """

    def __init__(self, folder: Path) -> None:
        self._reports = folder / "reports"
        self._reports.mkdir(parents=True)
        self._package = folder / "package"
        unused = shutil.ignore_patterns("build", "core", "kernels", "*.so", "__pycache__")
        shutil.copytree(Path(PACKAGE, "tfdist"), self._package / "tfdist", ignore=unused)
        made = subprocess.run(
            ["make", "-C", str(OPS), "-j2", "lib-asan", f"PYTHON={sys.executable}"]
            + [f"OUT={self._package / 'tfdist/ops'}"],
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert made.returncode == 0, made.stderr[-4000:]
        (self.path,) = (self._package / "tfdist/ops").glob("libtfdist_ops.*.so")

    def environment(self) -> dict[str, str]:
        """Returns the variables of a process that loads this library."""
        # The first library of a process has to be the sanitizer's, which looks for the functions
        # that it replaces at its start, also C++'s.
        first = [_file_of_compiler(name) for name in ("libasan.so", "libstdc++.so")]
        reports = f"log_path={self._reports / 'report'}"
        return {
            "PYTHONPATH": str(self._package),
            "LD_PRELOAD": " ".join(first),
            # Python and TensorFlow never free some of their memory.
            "ASAN_OPTIONS": f"detect_leaks=0:quarantine_size_mb={QUARANTINE}"
            f":malloc_context_size=8:allocator_release_to_os_interval_ms=1000:{reports}",
            # This one writes to stderr.
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }

    def is_loaded_by(self, pid: int) -> bool:
        """Whether a process runs this library, and the sanitizer."""
        mapped = Path(f"/proc/{pid}/maps").read_text()
        return str(self.path) in mapped and "/libasan.so" in mapped

    def reports(self) -> list[str]:
        """Returns the texts of the address sanitizer's reports."""
        return [path.read_text() for path in sorted(self._reports.iterdir())]

    def check_that_it_reports(self) -> None:
        """Makes processes of this library misuse memory; fails if a sanitizer does not see it."""
        with contextlib.ExitStack() as stack:
            processes = {
                kind: stack.enter_context(self._misuse(arguments))
                for kind, arguments in _MISUSES.items()
            }
            for process in processes.values():
                stack.callback(process.kill)
            for kind, process in processes.items():
                _, said = process.communicate(timeout=120)
                paths = list(self._reports.glob(f"*.{process.pid}"))
                found = "".join([said, *(path.read_text() for path in paths)])
                reports = kind in found and "tfdist_ps_server_of_ids" in found
                assert process.returncode != 0 and reports, f"{kind} is not reported: {found}"
                for path in paths:
                    path.unlink()

    def _misuse(self, arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", f"{_MISUSE}read({arguments})"],
            cwd=self._package,  # from where it would import first
            env={**os.environ, **self.environment()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def _file_of_compiler(name: str) -> str:
    found = subprocess.run(
        [os.environ.get("CXX", "g++"), f"-print-file-name={name}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.strip()
    assert Path(found).is_absolute(), f"the compiler has no {name}"
    return found
