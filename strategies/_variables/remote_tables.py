"""Embedding tables on parameter servers for a strategy whose other variables are in the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.ops.ps.client import ParameterClient
from tfdist.ps.config import PsConfig
from tfdist.strategies._variables.graphs import in_graph_of_tensorflow_1
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.placement import Placement
from tfdist.strategies._variables.roles import full_name
from tfdist.strategies._variables.table_variable import TableVariable


class RemoteTables:
    """The tables of a job whose workers train dense variables synchronously.

    Tables are synchronous too: the servers sum the gradients of all workers and apply the sum once.

    Args:
      cluster: the job. If it has `ps` tasks, this process connects to them now. A process without a
        cluster serves itself once it makes a table.
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
        self._config = PsConfig.make(
            cluster.world_size,
            "sync",
            checkpoint_dir=checkpoint_dir,
            durability=durability,
            elastic=self._elastic,
        )
        self._checkpoint_every = checkpoint_every
        self._parameters: Parameters | None = None
        if cluster.ps:
            self._join()

    def _join(self) -> Parameters:
        if self._parameters is None:
            if not (self._cluster.ps or self._cluster.is_local):
                raise ValueError(
                    "an embedding table beside all-reduce: expected a cluster with ps tasks, "
                    f"received {self._cluster.as_dict()}: start the job with some "
                    "(tfdist run --ps 1)"
                )
            worker = process.current.attach(
                self._cluster, self._config, self._checkpoint_every, has_variables=False
            )
            placement = Placement(max(1, len(self._cluster.ps)))
            self._parameters = self._make_parameters(worker.client, placement)
        return self._parameters

    def _make_parameters(self, client: ParameterClient, placement: Placement) -> Parameters:
        return Parameters(client, placement, self._cluster.is_chief)

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
