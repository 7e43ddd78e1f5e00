"""What `fit` tells of itself: the loss, for the dashboard, and at its end the straggler report."""

from __future__ import annotations

from typing import Any

from keras.callbacks import CallbackList

from tfdist.job import process
from tfdist.keras.hooks.preemption import current
from tfdist.keras.registry import hooks
from tfdist.metrics import curve


@hooks(CallbackList, "on_train_batch_end")
def note_loss(original, self, batch, logs=None):
    """The dashboard shows the loss of each step of `fit`."""
    note_loss_of_fit(self, logs)
    return original(self, batch, logs)


@hooks(CallbackList, "on_train_end")
def report_stragglers(original, self, logs=None):
    """At the end of `fit` the log says for whom this worker has waited."""
    report_stragglers_of_fit(self)
    return original(self, logs)


def note_loss_of_fit(callbacks: Any, logs: Any) -> None:
    """Notes the loss of a step, if metrics are served."""
    if process.current.serves_metrics and current.of(callbacks) is not None and logs:
        loss = logs.get("loss")
        if loss is not None:
            curve.loss.note(loss)


def report_stragglers_of_fit(callbacks: Any) -> None:
    """Reports for whom this worker has waited, at the end of the outermost `fit`."""
    if current.of(callbacks) is not None:
        process.current.report_stragglers()
