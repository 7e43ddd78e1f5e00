"""Embedding tables on parameter servers beside elastic all-reduce.

The rows' gradients of a unit of work are applied on all servers, once, or not at all, whichever
members die in it. The step of a member:

    meet        all members have committed the unit before: its rows are on the servers
    pull        begins a step of the client
      lookups, forward, backward, gradients of rows
    push        waits until all servers have collected these; they do not apply them
    flags       an all-reduce, which ends only if all members have pushed
      gate      see `tfdist.elastic.atomic_step`
    commit      the servers apply the gradients once all members have committed

The protocol, and what follows if a member dies, are in ops/core/ps/server/elastic_schedule.h.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.elastic.job import ElasticJob
from tfdist.elastic.membership import World
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.ops.collectives.world import world
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.variable_handles import TableHandle
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.placement import Placement
from tfdist.strategies._variables.remote_tables import RemoteTables
from tfdist.strategies._variables.server_variable import ServerVariable

if TYPE_CHECKING:
    from tfdist.keras.strategies import ModelTables

_log = logging.getLogger("tfdist.elastic")
# Seconds for which a reader of rows waits for the other members' commits of its last step, and
# between two questions. They usually take milliseconds.
_SETTLING, _PAUSE = 10.0, 0.01


class ElasticTables(RemoteTables):
    """The tables of an elastic job.

    Args:
      cluster: this process's task; it has `ps` tasks, to which this process connects now. Its
        training tasks are all that may become members.
      job: the members.
      checkpoint_dir: as for `RemoteTables`.
      checkpoint_every: as for `RemoteTables`. Rank 0 of the living members asks for snapshots.
      durability: as for `RemoteTables`.

    Raises:
      Exception: as for `RemoteTables`.
    """

    _elastic = True

    def __init__(
        self,
        cluster: Cluster,
        job: ElasticJob,
        checkpoint_dir: str | None,
        checkpoint_every: float,
        durability: str = "warn",
    ) -> None:
        self._job = job
        super().__init__(cluster, checkpoint_dir, checkpoint_every, durability)
        job.follow(self._resolve)

    def _make_parameters(self, client: ParameterClient, placement: Placement) -> Parameters:
        return _ElasticParameters(client, placement, self._job)

    def _join(self) -> _ElasticParameters:
        parameters = super()._join()
        assert isinstance(parameters, _ElasticParameters)
        return parameters

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Does nothing: a unit of work may have several calls of `strategy.run`, or none."""
        yield

    def begin_unit(self) -> None:
        """Says that the next call of a step is the job's next unit of work."""
        self._join().client.commits.begin_unit(self._job.units)

    @contextlib.contextmanager
    def unit(self, trains: bool) -> Iterator[None]:
        """The part of a traced step between its beginning and its push.

        Args:
          trains: whether it has gradients, and so a push and a commit.
        """
        parameters = self._join()
        if not parameters.variables():
            yield
            return
        with tf.device("/device:CPU:0"):
            met = ops.all_reduce(
                tf.constant(0), self._job.communicator, label="the commits of the step before"
            )
        with tf.control_dependencies([met]):
            parameters.begin_unit()
        with parameters.unordered_step(), parameters.accepting_gradients(trains):
            yield
        parameters.end_unit(trains)

    def commit(self) -> None:
        """Adds the commit to a traced step of training; the step's gate holds it back."""
        parameters = self._join()
        variables = parameters.variables()
        if variables:
            parameters.client.commits.commit(variables)

    def _resolve(self, world: World, units: int) -> None:
        """Tells the servers that the members of a generation have done some units of work."""
        slots = {address: i for i, address in enumerate(self._cluster.training_addresses)}
        strangers = [m for m in world.members if m.address not in slots]
        if strangers:
            raise ClusterConfigError(
                f"{self._cluster.task_name}: expected members that TF_CONFIG lists in an elastic "
                f"job with parameter servers, received {', '.join(map(str, strangers))}"
            )
        client = self._join().client
        job = int.from_bytes(hashlib.sha256(world.job.encode()).digest()[:8], "little") or 1
        try:
            client.commits.resolve(
                job, world.generation, units, [slots[member.address] for member in world.members]
            )
        except tf.errors.FailedPreconditionError as error:
            # The others have formed another generation meanwhile.
            self._job.communicator.abort(error.message[:400])
            raise


class _ElasticParameters(Parameters):
    """The variables that stand for the tables of an elastic job."""

    def __init__(self, client: ParameterClient, placement: Placement, job: ElasticJob) -> None:
        super().__init__(client, placement, is_chief=False)
        self._job = job
        # Of the unit that is being traced. Its replicas have threads of their own.
        self._accepts_gradients = False
        self._has_gradient: set[int] = set()

    @property
    def is_chief(self) -> bool:
        """Whether rows that this process restores reach the servers.

        Not a newcomer's tables: the members have trained since they restored the same.
        """
        return self._job.is_leader

    def begin_unit(self) -> None:
        """Begins a step of the client."""
        self._begin_step()

    @contextlib.contextmanager
    def accepting_gradients(self, accepts: bool) -> Iterator[None]:
        """Accepts gradients of rows, of any thread, or refuses them."""
        self._accepts_gradients = accepts
        self._has_gradient.clear()
        try:
            yield
        finally:
            self._accepts_gradients = False
            self._has_gradient.clear()

    def end_unit(self, trains: bool) -> None:
        """Sends what was staged, and waits until the servers have it."""
        self._groups.end()
        if trains:
            self.client.parameters.push(self.variables(), waits=True)

    def set_cache(self, name: str, table: int, rows: int, steps: int) -> None:
        """Refuses caches, whose rows lack steps.

        Raises:
          ValueError: always.
        """
        raise ValueError(
            f"embedding table {name!r}: expected cache_rows=0 in an elastic job, whose result does "
            f"not depend on the distribution of rows to workers, received {rows}"
        )

    def touch(self, variable: ServerVariable, read: bool = True) -> None:
        """See `Parameters.touch`."""
        self.settle()
        if variable.parameter in self._has_gradient:
            raise TfdistError(
                f"{variable.name}: expected each table of an elastic job to be looked up before "
                "the step's optimizer gets its gradient, since the servers apply it at the end of "
                "the step; received a lookup behind it"
            )

    def has_staged(self, variables: Sequence[ServerVariable]) -> None:
        """See `Parameters.has_staged`."""
        super().has_staged(variables)
        self._has_gradient.update(variable.parameter for variable in variables)

    def stage_rows(
        self, tables: Sequence[TableHandle], *gradients: Sequence[tf.Tensor]
    ) -> tf.Operation | None:
        """See `Parameters.stage_rows`."""
        self._refuse_outside_of_fit()
        return super().stage_rows(tables, *gradients)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """See `Parameters.step`."""
        self._refuse_outside_of_fit()
        yield

    def _refuse_outside_of_fit(self) -> None:
        if not self._accepts_gradients:
            raise TfdistError(
                "embedding tables of an elastic job: expected their gradients in fit alone, where "
                "a step is made by all workers or by none; received them outside of fit"
            )

    def replica_of_all(self, replica: int) -> tf.Tensor:
        """See `Parameters.replica_of_all`; for TensorFlow this process is alone."""
        rank, _ = world(self._job.communicator)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync // self._job.start_workers
        return rank * replicas + replica

    def settle(self) -> None:
        """See `Parameters.settle`; gives up after some seconds, or if another worker is lost."""
        if not tf.executing_eagerly() or self.client.commits.is_committed_by_all():
            return
        deadline = time.monotonic() + _SETTLING
        while time.monotonic() < deadline and not self._job.communicator.failed():
            if self.client.commits.is_committed_by_all():
                return
            self._job.pause(_PAUSE)
        _log.warning(
            "%s: rows are read that may lack the last step: another worker was lost in it, or has "
            "not ended it",
            self._job.cluster.task_name,
        )


if TYPE_CHECKING:
    _of_keras: type[ModelTables] = ElasticTables
