"""The two backups of `BackupAndRestore`: the newest one, and the one before it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import tensorflow as tf

from tfdist._types import FilePath
from tfdist.keras.state_file import read_state, unpacked

_log = logging.getLogger("tfdist")


def choose(
    newest: FilePath, former: FilePath, beside: Sequence[tuple[FilePath, FilePath]] = ()
) -> None:
    """Makes the backup before the newest one the newest, if that is damaged or missing.

    Args:
      newest: the path of the newest backup, which need not exist.
      former: the file of the backup before it.
      beside: further files, of the newest backup and of the one before it.

    Raises:
      ValueError: there are backups, and none is whole; names both.
      tf.errors.OpError: a file cannot be read.
    """
    newest, former = os.fspath(newest), os.fspath(former)
    exists = tf.io.gfile.exists(newest)
    problem = _problem_with(newest) if exists else None
    if exists and problem is None:
        return
    if not tf.io.gfile.exists(former):
        if exists:
            raise ValueError(
                f"{problem}; there is no backup before it ({former}). Remove it to begin anew"
            )
        return
    problem_of_former = _problem_with(former)
    if problem_of_former is not None:
        found = problem if exists else f"{newest} does not exist"
        raise ValueError(f"{found}; {problem_of_former}. Remove both to begin anew")
    if exists:
        _log.warning("%s; fit continues from %s, the backup before it", problem, former)
    # Last what decides whether all this is done again after a kill.
    for current, before in beside:
        if tf.io.gfile.exists(before):
            tf.io.gfile.copy(before, current, overwrite=True)
        elif tf.io.gfile.exists(current):
            tf.io.gfile.remove(current)
    tf.io.gfile.rename(former, newest, overwrite=True)


def _problem_with(path: str) -> str | None:
    """Why a backup cannot be used, with its name; `None` if it can."""
    try:
        content = read_state(path)
        if content is not None:
            unpacked(content)
    except ValueError as error:
        return str(error)
    return None
