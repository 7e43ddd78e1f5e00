"""Elastic training with tf_keras shows one progress bar; see `progress_bar`."""

from __future__ import annotations

from tf_keras.callbacks import ProgbarLogger

from tfdist.keras.hooks.elastic.progress_bar import muted
from tfdist.keras.registry import hooks


@hooks(ProgbarLogger, "on_epoch_begin")
def show_epochs_on_rank_0(original, self, epoch, logs=None):
    """In elastic training rank 0 shows the progress, whichever worker that is."""
    with muted(self):
        original(self, epoch, logs)


@hooks(ProgbarLogger, "_batch_update_progbar")
def show_progress_on_rank_0(original, self, batch, logs=None):
    """In elastic training rank 0 shows the progress, whichever worker that is."""
    with muted(self):
        original(self, batch, logs)


@hooks(ProgbarLogger, "_finalize_progbar")
def show_results_on_rank_0(original, self, logs, counter):
    """In elastic training rank 0 shows the progress, whichever worker that is."""
    with muted(self):
        original(self, logs, counter)
