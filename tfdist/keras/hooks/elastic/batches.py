"""`train_on_batch` in elastic training, which newcomers cannot follow."""

from __future__ import annotations

import logging
import weakref

from tfdist._types import KerasModel
from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of

_log = logging.getLogger("tfdist.elastic")
# Models of which the log has said that newcomers cannot join.
_warned: weakref.WeakSet[KerasModel] = weakref.WeakSet()


@hooks(TensorFlowTrainer, "train_on_batch")
def train_on_batch_among_members(original, self, *args, **kwargs):
    """In elastic training `train_on_batch` is refused on a worker that has not joined the members.

    It would train alone.
    """
    check_is_member(self)
    return original(self, *args, **kwargs)


def check_is_member(model: KerasModel) -> None:
    """Ends this process's part in the job if it is to train a batch before it has joined.

    Raises:
      TfdistError: it is.
    """
    job = elastic_job_of(model.distribute_strategy)
    if job is not None and job.is_newcomer:
        job.end(
            f"expected {model.name!r} to be trained by fit, or by a function of "
            "tfdist.elastic.run, received train_on_batch: a process that was started while the "
            "job runs cannot tell which batches the members have trained"
        )
    if job is not None and model not in _warned:
        _warned.add(model)
        _log.warning(
            "%s is trained by train_on_batch: a worker that is started from now on cannot join, "
            "because it cannot tell which batches were trained; fit and tfdist.elastic.run can",
            model.name,
        )
