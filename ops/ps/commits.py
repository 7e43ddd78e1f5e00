"""Commits of units of work in an elastic job, and of records of data tasks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.ps.client_c_api import CLIENT
from tfdist.ops.ps.variable_handles import ParameterHandle

# Leases that one call returns; the others expire.
_MAX_REFUSED = 4096


class Commits:
    """Commits of units of work in an elastic job, and of records of data tasks.

    A face of a `ParameterClient`.

    Args:
      handle: the client's.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def resolve(self, job: int, generation: int, units: int, workers: Sequence[int]) -> None:
        """Tells all servers the members of a generation of an elastic job.

        They apply what they have collected in a unit of work that the members have done, and forget
        it if the members have not. See core/ps/server/elastic_schedule.h.

        Args:
          job: identifies the job, from its founding to its end; not 0.
          generation: its number, from 1.
          units: of work that all members have done.
          workers: the members' ranks on the servers.

        Raises:
          tf.errors.FailedPreconditionError: a server knows a later generation.
          tf.errors.OpError: a server refused or did not answer.
        """
        refused = ctypes.c_bool()
        CLIENT.resolve(
            self.handle,
            job,
            generation,
            units,
            (ctypes.c_uint32 * len(workers))(*workers),
            len(workers),
            ctypes.byref(refused),
        )

    def begin_unit(self, number: int) -> None:
        """Says that later pushes and commits belong to a unit of work of an elastic job.

        Args:
          number: of units that were done before.
        """
        CLIENT.begin_unit(self.handle, number)

    def commit(self, variables: Sequence[ParameterHandle]) -> tf.Operation | None:
        """Tells the servers that this worker has done the unit of work whose gradients it pushed.

        They apply the unit's gradients once all members have said so.

        Args:
          variables: the tables' variables, which order the operation after the push.

        Returns:
          The operation, in a graph. It ends when the servers have answered.
        """
        return library.graph_ops().tfdist_ps_commit(
            variables=[v.handle for v in variables], client=self.handle
        )

    def is_committed_by_all(self) -> bool:
        """Whether the servers have applied the unit of work that this worker has committed last.

        Raises:
          tf.errors.OpError: a server did not answer.
        """
        is_open = ctypes.c_bool()
        CLIENT.repeat_commit(self.handle, ctypes.byref(is_open))
        return not is_open.value

    def add_batch(self, stream: int, records: Sequence[tuple[int, int, int]]) -> None:
        """Adds the next batch of a stream of data tasks.

        Args:
          stream: a number that this worker gives it.
          records: for each task in the batch its lease, its first record there, and the one behind
            the last.
        """
        numbers = np.asarray(records, np.uint64).reshape(-1)
        CLIENT.add_batch(
            self.handle,
            stream,
            numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64)),
            len(records),
        )

    def forget_stream(self, stream: int) -> None:
        """Forgets the batches of a stream that no step has used."""
        CLIENT.forget_stream(self.handle, stream)

    def begin_steps(self, stream: int, steps: int) -> None:
        """Says that the next `steps` steps use the next batches of a stream, one each.

        The push that ends such a step commits the records of its batch: the server applies both or
        refuses both. A later call, also with 0 steps, ends this one.
        """
        CLIENT.begin_steps(self.handle, stream, steps)

    def take_refused(self) -> tuple[int, set[int]]:
        """Returns how many batches were refused since the last call, and the leases of their tasks.

        Steps on further records of these tasks send nothing.
        """
        leases, count = (ctypes.c_uint64 * _MAX_REFUSED)(), ctypes.c_uint64()
        refused = CLIENT.take_refused(self.handle, leases, _MAX_REFUSED, ctypes.byref(count))
        return refused, set(leases[: count.value])
