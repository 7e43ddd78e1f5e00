"""The mark that tells the script of a scheduler that a preempted job has saved its state.

Exit code 143 alone does not say it. A launcher such as srun that ends all tasks after one has
failed sends them the SIGTERM that a scheduler sends, and returns 143. If a script queued the job
again for that, a job that always crashes would come back for ever:

    preempted    SIGTERM to all -> a last step -> saved -> the mark -> 143    queue it again
    crashed      a task fails -> SIGTERM to the others -> no common step       143, but no mark
"""

from __future__ import annotations

import logging
from pathlib import Path

from tfdist import atomic_files
from tfdist.job import process

_log = logging.getLogger("tfdist")


class NothingSavedError(Exception):
    """A job was told to end, and has no place to save to; the message says why."""


def mark_saved() -> None:
    """Notes that this job, which was told to end, has saved its state.

    The chief writes the file `TFDIST_PREEMPTION_MARKER`, so that the script that has started the
    job knows that it may be queued again; without the variable, and on other workers, nothing
    happens. `fit` and the training of an Estimator call it themselves. Call it in a custom loop on
    all workers, after the checkpoint is written and before `tfdist.errors.Preempted` is raised:

    ```python
    if tfdist.stop_requested():
        checkpoint.save("checkpoints/step")
        tfdist.mark_saved()
        raise tfdist.errors.Preempted
    ```

    A file that cannot be written is logged, and no error: the state is saved all the same.
    """
    marker = process.current.settings.preemption_marker
    if marker is None or not _is_chief():
        return
    try:
        atomic_files.replace(str(Path(marker).absolute()), lambda new: Path(new).write_text(""))
    except OSError as error:
        _log.warning("TFDIST_PREEMPTION_MARKER: cannot say that this job has saved: %s", error)


def _is_chief() -> bool:
    return not process.current.is_initialized or process.current.rank("tfdist.mark_saved()") == 0
