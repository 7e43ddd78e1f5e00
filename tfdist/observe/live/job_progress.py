"""Where the training of a running job stands, for the list of jobs."""

from __future__ import annotations

from pathlib import Path

from tfdist.errors import ClusterConfigError
from tfdist.observe.live import targets
from tfdist.observe.live.records import activity, first_that_trains
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.metrics.fit_progress import FitProgress


def progress_of(job_file: Path, timeout: float) -> FitProgress | None:
    """Asks the tasks of a job where their `fit` stands.

    Args:
      job_file: of the job.
      timeout: seconds in which a task must answer.

    Returns:
      The answer of the chief, or of the first worker; `None` if no task tells of a `fit`.
    """
    try:
        sampler = Sampler(targets.find(job_file, None), timeout)
    except ClusterConfigError:
        return None  # it serves no metrics, or has just ended
    try:
        answers = sampler.sample()
    finally:
        sampler.close()
    trains = first_that_trains(activity(answers, answers).tasks)
    return None if trains is None else trains.fit
