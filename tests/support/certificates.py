"""Certificates for tests, made by the program `openssl`."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc"


class Files(NamedTuple):
    """Certificate, key and authority of a process, in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes


def openssl(folder: Path, command: str) -> None:
    """Runs `openssl`, and shows what it says if it fails."""
    done = subprocess.run(
        ["openssl", *shlex.split(command)], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"openssl {command}:\n{done.stderr}"


def issue(folder: Path, names: str = "IP:127.0.0.1", days: int = 30) -> Files:
    """Makes a certificate for `names`, and in a new folder the authority that issues it.

    Args:
      folder: the authority's.
      names: as in `subjectAltName` of OpenSSL.
      days: from now to the end of the certificate.
    """
    if not (folder / "ca.pem").exists():
        openssl(folder, f"req -x509 {_NEW_KEY} -subj '/CN=job' -keyout ca.key -out ca.pem")
    openssl(folder, f"req {_NEW_KEY} -subj /CN=worker -keyout own.key -out own.csr")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    openssl(
        folder,
        f"x509 -req -in own.csr -CA ca.pem -CAkey ca.key -days {days} -extfile names -out own.pem",
    )
    return Files(*((folder / name).read_bytes() for name in ("own.pem", "own.key", "ca.pem")))
