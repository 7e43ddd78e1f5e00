"""Directories of tf_keras's workers in elastic training, where one worker alone writes."""

from __future__ import annotations

from tfdist.internals.tf_keras import distributed_file_utils
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of


@hooks(distributed_file_utils, "write_dirpath")
def write_where_rank_0_does(original, dirpath, strategy):
    """In elastic training no worker has directories of its own, since one alone writes."""
    return dirpath if elastic_job_of(strategy) is not None else original(dirpath, strategy)


@hooks(distributed_file_utils, "remove_temp_dirpath")
def keep_directory(original, dirpath, strategy):
    """In elastic training no worker deletes a directory of its own."""
    if elastic_job_of(strategy) is None:
        original(dirpath, strategy)
