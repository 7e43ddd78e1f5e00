"""The contents of variables, which the members of an elastic job compare from time to time.

All members do the same, so their variables are equal, bit for bit: a collective gives all ranks
the same bits. They differ if a callback changes variables on each worker in another way, for
instance by noise without a seed. Then those end that differ from most of the members.

    member 0    crc crc crc -> 17 \\
    member 1    crc crc crc -> 17  all-gather: member 2 differs
    member 2    crc crc crc -> 42 /
                 |   |   |
                 all-gather: in the second variable; member 0 broadcasts it

Processors of two kinds may round the same operations differently. So small a difference is not an
error: those take the values of the others.
"""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.elastic.atomic_step import read
from tfdist.elastic.job import ElasticJob
from tfdist.elastic.values import assign_values, broadcast_values
from tfdist.errors import TfdistError

_log = logging.getLogger("tfdist.elastic")
# Comparing takes at most this part of the time, or these seconds at a time if that is more.
_MAX_PART = 0.01
_MAX_SECONDS = 0.002
# A message names so many variables.
_MAX_NAMES = 3


class Contents:
    """The variables of one `fit`, which all members compare.

    Args:
      job: the members.
      handles: the variables' resources, the same list on all members.
      names: of the variables, for messages.
    """

    def __init__(self, job: ElasticJob, handles: Sequence[tf.Tensor], names: Sequence[str]) -> None:
        self._job = job
        self._handles = handles
        self._names = names
        # The units of work that were done when this process became a member.
        self._since = 0
        self._generation = -1
        self._is_due = True
        self._called_at = self._compared_at = time.monotonic()
        self._cost = 0.0  # in seconds

    def note_joining(self) -> None:
        """Says that this process has become a member just now."""
        self._since = self._job.units

    def compare(self, always: bool = False) -> None:
        """Compares the contents, if it is time; all members call it together.

        Args:
          always: whether it is time in any case.

        Raises:
          TfdistError: this member's values differ from most members'; names the variables. It
            has left the job.
          tf.errors.OpError: a member was lost.
        """
        # After a loss it has had no result, and is called again.
        compares = always or self._is_due or self._generation != self._job.generation
        now = time.monotonic()
        own = checksums(self._handles) if compares else np.zeros(0, np.int64)
        if compares:
            self._cost, self._compared_at = time.monotonic() - now, now
        next_time = now + now - self._called_at
        limit = max(_MAX_SECONDS, _MAX_PART * (next_time - self._compared_at))
        row = [compares, _digest(own), self._since, self._cost <= limit]
        rows = self._gathered(row, "fingerprints of the variables")
        # All need to know whether to compare next time: rank 0 decides.
        self._is_due = bool(rows[0, 3])
        self._called_at = now
        self._generation = self._job.generation
        have = rows[:, 0] != 0
        if len(set(rows[have, 1].tolist())) > 1:
            self._settle(rows, own if compares else checksums(self._handles))

    def _settle(self, rows: np.ndarray, own: np.ndarray) -> None:
        """Makes the contents equal, or ends this member."""
        rank = self._job.rank
        truth = _rank_of_truth(rows)
        sums = self._gathered(own, "checksums of the variables")
        indices = np.flatnonzero((sums != sums[truth]).any(axis=0)).tolist()
        handles = [self._handles[index] for index in indices]
        values = broadcast_values(handles, self._job.communicator, truth, "the variables' values")
        wrong = [
            self._names[index]
            for index, handle, value in zip(indices, handles, values, strict=True)
            if not _is_rounding(np.asarray(read(handle)), np.asarray(value))
        ]
        ends = self._gathered([bool(wrong)], "which members differ")[:, 0] != 0
        of_truth = self._named(truth)
        if ends[rank]:
            shown = ", ".join(wrong[:_MAX_NAMES]) + (", ..." if len(wrong) > _MAX_NAMES else "")
            message = (
                f"{self._job.cluster.task_name}: expected the values of all variables that "
                f"{of_truth} and most members have, received others in {len(wrong)} variables "
                f"({shown}): a callback, or another part of the program, changes them on each "
                "worker in another way, for instance by unseeded noise. This worker ends; the "
                "others continue"
            )
            raise self._job.ended_by(TfdistError(message))
        if ends.any():
            _log.warning(
                "%s: other values of the variables than on %s: %s ends",
                self._job.cluster.task_name,
                of_truth,
                ", ".join(map(self._named, np.flatnonzero(ends).tolist())),
            )
        if (sums[rank] != sums[truth]).any():
            _log.warning(
                "%s: takes the values of %s, which differ by rounding: %s",
                self._job.cluster.task_name,
                of_truth,
                ", ".join(self._names[index] for index in indices[:_MAX_NAMES]),
            )
            assign_values(handles, values)

    def _named(self, rank: int) -> str:
        return f"rank {rank} at {self._job.addresses[rank]}"

    def _gathered(self, own: Sequence[int] | np.ndarray, label: str) -> np.ndarray:
        with tf.device("/device:CPU:0"):
            row = tf.constant(np.asarray(own, np.int64)[None])
            return ops.all_gather(row, self._job.communicator, label=label).numpy()


def checksums(handles: Sequence[tf.Tensor]) -> np.ndarray:
    """Returns a checksum of the bits of each variable, int64[variables].

    Args:
      handles: the variables' resources.
    """
    with tf.device("/device:CPU:0"):
        values = (np.asarray(tf.identity(read(handle))) for handle in handles)
        return np.array([zlib.crc32(_as_bytes(value).data) for value in values], np.int64)


def _as_bytes(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _digest(sums: np.ndarray) -> int:
    digest = hashlib.blake2b(sums.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _rank_of_truth(rows: np.ndarray) -> int:
    """The first rank of the largest group of equal members.

    Of groups of the same size it is the one with the oldest member.
    """
    groups: dict[int, list[int]] = {}
    for rank, (has, digest, _, _) in enumerate(rows.tolist()):
        if has:
            groups.setdefault(digest, []).append(rank)
    largest = min(groups.values(), key=lambda ranks: (-len(ranks), min(rows[ranks, 2]), ranks[0]))
    return largest[0]


def _is_rounding(own: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays differ by no more than half of their digits."""
    if (_as_bytes(own) == _as_bytes(other)).all():
        return True
    dtype = tf.as_dtype(own.dtype)
    if not dtype.is_floating:
        return False
    precision = float(np.sqrt(np.finfo(own.dtype).eps)) if own.dtype.kind == "f" else 0.1
    own, other = own.astype(np.float64), other.astype(np.float64)
    is_number = np.isfinite(other)
    if not np.array_equal(own[~is_number], other[~is_number], equal_nan=True):
        return False
    distance = np.abs(own[is_number] - other[is_number])
    return bool((distance <= precision * np.abs(other[is_number]).max(initial=0.0)).all())
