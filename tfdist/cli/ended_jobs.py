"""The words of commands about a job that has ended."""

from __future__ import annotations

import time
from pathlib import Path


def description_of_end(file: Path) -> str:
    """Returns how the job with a job file has ended, and when; empty if it runs, or is not listed.

    Args:
      file: its path; the launcher removes the file itself at the end.
    """
    from tfdist.errors import ClusterConfigError
    from tfdist.launch.job_registry import job_of
    from tfdist.observe.live.table import duration

    try:
        job = job_of(file)
    except (ClusterConfigError, OSError):
        return ""
    if job.is_running:
        return ""
    how = "its launcher was killed" if job.code is None else f"exit code {job.code}"
    if job.ended is not None:
        how += f", {duration(max(0.0, time.time() - job.ended))} ago"
    has_output = job.log is not None and job.log.exists()
    output = f"; 'tfdist logs --job {job.job_file}' prints its output" if has_output else ""
    return f"{file}: the job has ended: {how}{output}"
