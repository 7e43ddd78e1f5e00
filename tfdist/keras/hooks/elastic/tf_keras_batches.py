"""`train_on_batch` and the like of tf_keras in elastic training; see `batches`."""

from __future__ import annotations

import tf_keras

from tfdist.internals.tf_keras import data_adapter
from tfdist.keras.hooks.elastic.batches import check_is_member
from tfdist.keras.registry import hooks
from tfdist.keras.session.elastic import WholeBatches
from tfdist.keras.workers import elastic_job_of


@hooks(tf_keras.Model, "train_on_batch")
def train_on_batch_among_members(original, self, *args, **kwargs):
    """In elastic training `train_on_batch` is refused on a worker that has not joined the members.

    It would train alone.
    """
    check_is_member(self)
    return original(self, *args, **kwargs)


@hooks(data_adapter, "single_batch_iterator")
def read_whole_batch(original, strategy, *args, **kwargs):
    """In elastic training `train_on_batch` and the like take a whole batch, which a step cuts."""
    job = elastic_job_of(strategy)
    return original(strategy if job is None else WholeBatches(job, strategy), *args, **kwargs)
