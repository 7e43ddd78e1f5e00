"""The mark that tells a late process that its elastic job has ended.

No process answers where a job has ended, or has not begun yet. A process that comes then would
form a job, train everything again and replace its files. So the member that is rank 0 at the end
of its script, which writes the job's files, leaves an empty file in a directory that the others
see, before it leaves the job:

    member 0    script ends | JOB.ended | leaves the job
    late                                          nobody answers | sees JOB.ended | ends with 0

A process looks for it when it comes, and before each founding that it takes part in: a process that
does not see it comes to members that still live. A job that has failed leaves none.
"""

from __future__ import annotations

import datetime
import logging
import os
from pathlib import Path

from tfdist.config.settings import Settings

_log = logging.getLogger("tfdist.elastic")


class JobEnded(SystemExit):  # noqa: N818 - no error: the program ends with exit code 0
    """The job of this process has ended; a program that does not catch it ends with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Tombstone:
    """The mark of one job's end.

    Args:
      settings: the directory and the job's name; without a directory there is no mark.
      task: this task, for messages.
    """

    def __init__(self, settings: Settings, task: str) -> None:
        self._directory = Path(settings.tombstone_dir) if settings.tombstone_dir else None
        self._job = settings.job_id
        self._task = task
        self._problem = ""  # the last one of reading the directory

    def check(self) -> None:
        """Ends this program if the job has ended.

        Raises:
          JobEnded: it has.
        """
        if self._directory is None or self._name not in self._entries(self._directory):
            return
        try:
            ended = (self._directory / self._name).stat().st_mtime
        except FileNotFoundError:  # it has just been removed: the job is to begin again
            return
        when = datetime.datetime.fromtimestamp(ended).astimezone().isoformat(" ", "seconds")
        _log.warning(
            "%s: the job %s has ended at %s; this process has come too late, and ends",
            *(self._task, self._job, when),
        )
        raise JobEnded

    def leave(self) -> None:
        """Marks the job as ended."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / self._name).touch()
        except OSError as error:
            _log.warning(
                "%s: cannot tell later processes that the job %s has ended: %s",
                *(self._task, self._job, error),
            )

    @property
    def _name(self) -> str:
        return f"{self._job}.ended"

    def _entries(self, directory: Path) -> list[str]:
        """Returns the names of all files: to open a directory makes NFS ask its server."""
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            # A process that waits for others asks again and again.
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning(
                    "%s: cannot see whether the job %s has ended: %s", self._task, self._job, error
                )
            return []
