"""The centre of asynchronous elastic averaging, on the parameter servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.ps.config import PsConfig
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.placement import Placement

# The servers keep no snapshots of it.
_CHECKPOINT_EVERY = 600.0


@dataclasses.dataclass(frozen=True)
class CentreVariable:
    """A variable of the centre.

    Args:
      anchor: this worker's copy, as it was fetched last.
      parameter: its id on the servers.
    """

    anchor: tf.Variable
    parameter: int

    @property
    def handle(self) -> tf.Tensor:
        """The resource of the copy."""
        return self.anchor.handle


class Centre:
    """Connects this worker to the parameter servers, which hold the centre.

    Args:
      cluster: the job; a process without a cluster serves itself.
      alpha: the elasticity.
      communicator: the workers; `None` if there is one.
      timeout: of the wait for the other workers, in seconds; as for `tfdist.ops.all_reduce`.

    Raises:
      Exception: as `tfdist.ParameterServerStrategy`.
    """

    def __init__(
        self,
        cluster: Cluster,
        alpha: float,
        communicator: ops.Communicator | None,
        timeout: float | None,
    ) -> None:
        self._alpha = alpha
        self._communicator = communicator
        self._timeout = timeout
        config = PsConfig.make(cluster.world_size, "async")
        worker = process.current.attach(cluster, config, _CHECKPOINT_EVERY, has_variables=False)
        self._is_chief = cluster.is_chief
        self._client = worker.client
        placement = Placement(max(1, len(cluster.ps)))
        self._parameters = Parameters(worker.client, placement, cluster.is_chief)

    def create(self, name: str, anchor: tf.Variable) -> CentreVariable:
        """Creates a variable of the centre from a worker's copy, unless the servers have it.

        Args:
          name: the same on all workers.
          anchor: the copy; all workers begin with the same values.
        """
        name = self._parameters.unique_name(f"centre of {name}")
        parameter = self._parameters.add(name, anchor.shape, anchor.dtype)
        self._parameters.initial_value(parameter, anchor.read_value())
        return CentreVariable(anchor, parameter)

    def exchange(
        self, variables: Sequence[CentreVariable], values: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Moves the centre towards a worker's values; returns what it has moved by."""
        parameters = [variable.parameter for variable in variables]
        with tf.device("/device:CPU:0"):
            return self._client.averaging.exchange(parameters, values, self._alpha)

    def fetch(self, variables: Sequence[CentreVariable]) -> None:
        """Brings this worker's copies up to date."""
        with tf.device("/device:CPU:0"):
            self._client.parameters.pull(variables, begins_step=False)

    def publish(self, variables: Sequence[CentreVariable]) -> tf.Operation | None:
        """Makes the chief's copies the centre; returns the operation, in a graph."""
        with tf.device("/device:CPU:0"):
            return self._client.parameters.set(variables, write=self._is_chief)

    def wait_for_workers(self) -> tf.Tensor:
        """Waits until all workers have come here; returns a zero, float32[]."""
        zero = tf.zeros([])
        if self._communicator is None:
            return zero
        with tf.device("/device:CPU:0"):
            (total,) = ops.fused_all_reduce(
                [zero], self._communicator, label="assigned weights", timeout=self._timeout
            )
        return total
