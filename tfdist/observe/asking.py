"""Asking the tasks of a running job on this machine, found by its job file or directory."""

from __future__ import annotations

from pathlib import Path

from tfdist.config.job_file import JobFile
from tfdist.errors import ClusterConfigError
from tfdist.observe import channel


class NoTasksError(Exception):
    """There is no task to ask; the text says why."""


def directory(job: Path | None, chosen: Path | None) -> Path:
    """Returns the directory in which the tasks of a job listen.

    Args:
      job: the job file; or
      chosen: the directory itself.

    Raises:
      NoTasksError: the job has ended, or the file is no job file.
    """
    if chosen is not None:
        return chosen
    assert job is not None
    try:
        job.stat()
        found = JobFile.read(job).debug_dir
    except FileNotFoundError:
        raise NoTasksError(f"{job}: no such file; has the job ended?") from None
    except OSError as error:
        raise NoTasksError(f"{job}: expected a job file: {error.strerror}") from None
    except ClusterConfigError as error:
        raise NoTasksError(str(error)) from None
    if found is None:
        raise NoTasksError(f"{job}: this job has no directory of dumps")
    return Path(found)


def answers(where: Path, request: str, timeout: float) -> dict[str, str]:
    """Asks all tasks; returns their answers, as `channel.ask_all`.

    Raises:
      NoTasksError: no task listens in the directory.
    """
    try:
        found = channel.ask_all(where, request, timeout)
    except OSError as error:
        raise NoTasksError(f"{where}: expected a directory of dumps: {error.strerror}") from None
    if not found:
        raise NoTasksError(f"{where}: no task of a running job listens here")
    return found
