"""Embedding tables for a strategy whose other variables are in the workers.

The rows are on the `ps` tasks of the job, or dealt over the workers if there are none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.job.objects import all_gather_object
from tfdist.ops.ps.client import ParameterClient
from tfdist.ps.config import PsConfig
from tfdist.strategies._variables.graphs import in_graph_of_tensorflow_1
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.placement import Placement
from tfdist.strategies._variables.roles import full_name
from tfdist.strategies._variables.table_variable import TableVariable

# Seconds for which tables in the workers wait for a slow worker: as long as the collectives of the
# dense variables do, whose timeouts end the step.
_NEVER = 1e9


class RemoteTables:
    """The tables of a job whose workers train dense variables synchronously.

    Tables are synchronous too: the servers sum the gradients of all workers and apply the sum once.

    Args:
      cluster: the job. If it has `ps` tasks, this process connects to them now. Otherwise the
        workers serve each other, or a process without a cluster itself, from the first table on.
      checkpoint_dir: where servers keep snapshots; `None` keeps none.
      checkpoint_every: seconds between snapshots.
      durability: as in `tfdist.ParameterServerStrategy`.

    Raises:
      Exception: as `tfdist.ParameterServerStrategy`.
    """

    # Whether the members of an elastic job decide about steps.
    _elastic = False

    def __init__(
        self,
        cluster: Cluster,
        checkpoint_dir: str | None,
        checkpoint_every: float,
        durability: str = "warn",
    ) -> None:
        self._cluster = cluster
        self._are_in_workers = not (cluster.ps or cluster.is_local)
        patience: dict[str, Any] = {"worker_timeout": _NEVER, "start_timeout": _NEVER}
        self._config = PsConfig.make(
            cluster.world_size,
            "sync",
            checkpoint_dir=checkpoint_dir,
            durability=durability,
            elastic=self._elastic,
            **(patience if self._are_in_workers else {}),
        )
        self._checkpoint_every = checkpoint_every
        self._parameters: Parameters | None = None
        if cluster.ps:
            self._join()

    def prepare(self) -> None:
        """Starts the servers of tables in the workers; all workers call this at the same time.

        Later a worker may use a table alone. Does nothing where the tables are elsewhere.
        """
        if self._are_in_workers:
            self._join()

    def _join(self) -> Parameters:
        if self._parameters is None:
            with tf.init_scope():
                worker = process.current.attach(
                    self._cluster, self._config, self._checkpoint_every, has_variables=False
                )
            placement = Placement(worker.client.servers)
            self._parameters = self._make_parameters(worker.client, placement)
        return self._parameters

    def _make_parameters(self, client: ParameterClient, placement: Placement) -> Parameters:
        if self._are_in_workers:
            return _ParametersOfWorkers(client, placement, self._cluster)
        # A process without a cluster is both.
        tables_on = ["servers"] if self._cluster.ps else ["servers", "workers"]
        return Parameters(client, placement, self._cluster.is_chief, tables_on=tables_on)

    def create(self, next_creator: Callable[..., tf.Variable], kwargs: dict) -> TableVariable:
        """Makes the variable that represents a table.

        Raises:
          ValueError: in a TensorFlow 1 graph, such as an Estimator's.
        """
        if in_graph_of_tensorflow_1():
            raise ValueError(
                "an embedding table beside all-reduce: expected Keras or a loop of tf.functions, "
                "received a TensorFlow 1 graph: let an Estimator train with "
                'tfdist.ParameterServerStrategy(mode="sync")'
            )
        parameters = self._join()
        name = parameters.unique_name(full_name(kwargs.get("name")))
        value = kwargs["initial_value"]
        with tf.init_scope(), tf.device("/device:CPU:0"):
            value = tf.convert_to_tensor(value() if callable(value) else value)
            parameter = parameters.add(name, value.shape, value.dtype)
            value = parameters.initial_value(parameter, value)
            kwargs = {**kwargs, "initial_value": value, "use_resource": True}
            return parameters.adopt(next_creator(**kwargs), parameter, TableVariable)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step of the servers: begins it, runs the body, ends it."""
        if self._parameters is None:
            yield
            return
        with self._parameters.step():
            yield


class _ParametersOfWorkers(Parameters):
    """The variables that stand for tables in the workers.

    Args:
      client: the connections to the servers in the workers.
      placement: as for `Parameters`.
      cluster: the job.
    """

    def __init__(self, client: ParameterClient, placement: Placement, cluster: Cluster) -> None:
        super().__init__(client, placement, cluster.is_chief, tables_on=["workers"])
        self._cluster = cluster

    def check_name(self, name: str) -> None:
        """See `Parameters.check_name`."""
        if self._cluster.world_size == 1:
            return
        with tf.init_scope():
            names = all_gather_object(name, label="the embedding layer that each worker makes")
        if len(set(names)) > 1:
            found = ", ".join(
                f"{self._cluster.name_of_rank(rank)} makes {each!r}"
                for rank, each in enumerate(names)
            )
            raise ValueError(
                "an embedding layer: expected the same layers in the same order on all workers, "
                f"but {found}: give the layers names"
            )
