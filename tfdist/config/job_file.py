"""The job file: the cluster and the secret of a running job, for later commands.

`tfdist run` writes one for each job, with mode 0600, and removes it at the job's end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.config import tls, validation
from tfdist.config.tls import Tls
from tfdist.errors import ClusterConfigError

_log = logging.getLogger("tfdist.config")


@dataclasses.dataclass(frozen=True)
class JobFile:
    """The content of a job file.

    Args:
      cluster: a TF_CONFIG of the job.
      secret: the shared secret of its tasks, or `None`.
      scale_socket: the path at which the launcher of an elastic job answers `tfdist scale`; `None`
        for other jobs.
      debug_dir: the directory of the tasks' dumps, for `tfdist debug dump`.
      metrics: the address of each task's metrics, "host:port", by its name, such as "worker 0".
      tls: the variables by which its tasks encrypt their connections, by name; none if they do not.
    """

    cluster: str
    secret: str | None = dataclasses.field(default=None, repr=False)
    scale_socket: str | None = None
    debug_dir: str | None = None
    metrics: dict[str, str] = dataclasses.field(default_factory=dict)
    tls: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def secret_bytes(self) -> bytes | None:
        """The secret as the tasks have it."""
        return None if self.secret is None else self.secret.encode("latin-1")

    @property
    def encryption(self) -> Tls | None:
        """The origin of a certificate for calls to the tasks; None if they do not encrypt.

        Raises:
          ClusterConfigError: the variables contradict each other.
        """
        return tls.from_environment(self.tls, self.secret_bytes)

    @contextlib.contextmanager
    def written(self, path: Path | None = None) -> Iterator[Path]:
        """Writes the file, with mode 0600, and removes it on exit.

        Args:
          path: the file; None makes a new one in a directory of this user.

        Yields:
          The path of the file.

        Raises:
          OSError: the file cannot be written, or exists already.
        """
        if path is not None:
            created = path
        else:
            directory = user_directory() or Path(tempfile.mkdtemp(prefix="tfdist-"))
            _remove_stale_files(directory)
            # Two containers may share the directory, and have equal numbers of processes.
            name = f"{os.getpid()}-{secrets.token_hex(2)}.json"
            path = directory / name
            # Another launcher must not find it before it is locked: it would remove it.
            created = directory / f".{name}"
        descriptor = os.open(created, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "w") as file:
                # Held while the job runs: see _remove_stale_files.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                created.rename(path)
                json.dump(dataclasses.asdict(self), file)
                file.flush()
                yield path
        finally:
            path.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> JobFile:
        """Returns the content of a file.

        Raises:
          ClusterConfigError: it cannot be read, is no job file, belongs to another user, or can be
            written by others.
        """
        received = ""
        fields: Any = None
        try:
            # Without O_NONBLOCK, opening a pipe would block.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    received = "no regular file"
                elif about.st_uid not in (os.geteuid(), 0):
                    received = "another user's"
                elif about.st_mode & 0o022:
                    mode = stat.S_IMODE(about.st_mode)
                    received = f"a file that other users can write (mode {mode:03o})"
                else:
                    if about.st_mode & 0o077:
                        _log.warning(
                            "other users can read %s, and with it the job's secret (mode %03o); "
                            "expected mode 600",
                            path,
                            stat.S_IMODE(about.st_mode),
                        )
                    content = file.read()
                    received = f"{len(content)} bytes that are no JSON"
                    fields = json.loads(content)
                    received = _difference(fields)
        except OSError as error:
            received = error.strerror or str(error)
        except (ValueError, RecursionError):
            pass  # `received` says so
        if received:
            raise ClusterConfigError(
                f"{path}: expected a job file of your own, as 'tfdist run' writes, received: "
                f"{received}"
            )
        return cls(**fields)


def _difference(fields: object) -> str:
    """Returns what is wrong with the JSON of a job file; empty if nothing is."""
    if not isinstance(fields, dict):
        return f"JSON of another kind ({type(fields).__name__})"
    names = [field.name for field in dataclasses.fields(JobFile)]
    if "cluster" not in fields:
        return "a JSON object without 'cluster'"
    for name, value in fields.items():
        if name not in names:
            return f"a JSON object with {name!a}, which no job file has"
        if name == "tls":
            if not _are_variables(value):
                return "'tls' that are no variables of TLS by name"
            continue
        if name == "metrics":
            if not _are_addresses(value):
                return "'metrics' that are no addresses by name"
            continue
        if not (isinstance(value, str) or (value is None and name != "cluster")):
            return f"{name!r} of another kind ({type(value).__name__})"
        if value is not None and not _is_usable(name, value):
            return f"{name!r} with characters that it cannot have"
    return ""


def _are_addresses(value: Any) -> bool:
    return isinstance(value, dict) and not any(
        validation.address_problem(address) for address in value.values()
    )


def _are_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name in tls.VARIABLES and isinstance(text, str) and "\0" not in text
        for name, text in value.items()
    )


def _is_usable(name: str, text: str) -> bool:
    try:
        text.encode("latin-1" if name == "secret" else "utf-8")
    except UnicodeEncodeError:
        return False
    return name == "secret" or "\0" not in text  # which no path has


def _remove_stale_files(directory: Path) -> None:
    """Removes job files of killed launchers, since they hold secrets.

    A running launcher holds a lock on its file.
    """
    for path in directory.glob("[0-9]*.json"):
        with contextlib.suppress(OSError), path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def user_directory() -> Path | None:
    """Returns the directory of this user's jobs, in which only the user can write.

    Returns:
      Its path; `None` if another user has made it, or its mode lets other users in.

    Raises:
      OSError: it cannot be made.
    """
    parent = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    directory = Path(parent, f"tfdist-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    about = directory.lstat()
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return directory if is_own and not about.st_mode & 0o077 else None
