"""Elastic training shows one progress bar: rank 0's, whichever worker that is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keras.callbacks import ProgbarLogger

from tfdist._types import KerasCallback
from tfdist.keras.rank_zero import is_left_to_rank_0
from tfdist.keras.registry import hooks


@hooks(ProgbarLogger, "on_epoch_begin")
def show_epochs_on_rank_0(original, self, epoch, logs=None):
    """In elastic training rank 0 shows the progress, whichever worker that is."""
    with muted(self):
        original(self, epoch, logs)


@hooks(ProgbarLogger, "_update_progbar")
def show_progress_on_rank_0(original, self, batch, logs=None):
    """In elastic training rank 0 shows the progress, whichever worker that is."""
    with muted(self):
        original(self, batch, logs)


@hooks(ProgbarLogger, "_finalize_progbar")
def show_results_on_rank_0(original, self, logs):
    """In elastic training rank 0 shows the progress, whichever worker that is."""
    with muted(self):
        original(self, logs)


@contextlib.contextmanager
def muted(logger: KerasCallback) -> Iterator[None]:
    """Within it a `ProgbarLogger` shows nothing, unless this member is rank 0."""
    if not is_left_to_rank_0(logger.model):
        if logger.progbar is not None:
            logger.progbar.verbose = logger.verbose
        yield
        return
    before, logger.verbose = logger.verbose, 0
    if logger.progbar is not None:
        logger.progbar.verbose = 0
    try:
        yield
    finally:
        logger.verbose = before
