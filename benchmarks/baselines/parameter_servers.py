"""The two jobs that benchmarks/parameter_server.py compares.

An object is made, and its methods are called, in the process of one task.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

LEARNING_RATE = 1.0
FRACTION = 2.0**-12  # of each variable: its gradient; small enough for 100,000 steps
PUSHED = 2.0**-12  # times i + 1: variable i's gradient in a push without a step
PATIENCE = 60.0  # seconds


@dataclasses.dataclass(frozen=True)
class Model:
    """`count` float32 variables of one length; the initial value of variable i is i + 1."""

    count: int
    length: int

    @property
    def bytes(self) -> int:
        return 4 * self.count * self.length

    def make_variables(self) -> list:
        import tensorflow as tf

        return [
            tf.Variable(tf.fill([self.length], i + 1.0), name=f"of_{self.length}_{i}")
            for i in range(self.count)
        ]

    def verify(self, who: str, variables: Sequence, steps: int, pushes: int) -> None:
        """Raises unless these are the values after `steps` steps and then `pushes` pushes."""
        import numpy as np

        for i, variable in enumerate(variables):
            factor = (1 - LEARNING_RATE * FRACTION) ** steps - LEARNING_RATE * PUSHED * pushes
            expected = np.full(self.length, (i + 1) * factor)
            # One missing or extra step would differ by 2e-4.
            np.testing.assert_allclose(variable.numpy(), expected, 1e-6, err_msg=f"{who}, {i}")

    def gradients(self, element) -> list:
        """The gradients of a push without a step. Of equal ones TensorFlow would send only one."""
        import tensorflow as tf

        return [tf.fill([self.length], (i + 1) * element) for i in range(self.count)]


class TfdistServer:
    """tfdist's parameter server; serves until its process ends."""

    def __init__(self, tf_config: str) -> None:
        os.environ["TF_CONFIG"] = tf_config
        import tfdist

        tfdist.init()


class TfdistWorker:
    """A worker of tfdist's job. It trains the first of its models."""

    def __init__(self, tf_config: str, models: Sequence[Model]) -> None:
        os.environ["TF_CONFIG"] = tf_config
        import keras
        import tensorflow as tf

        import tfdist

        strategy = tfdist.ParameterServerStrategy()
        self._parameters = strategy.extended.parameters
        self._client = self._parameters.client
        self._models = models
        with strategy.scope():
            variables = models[0].make_variables()
            optimizer = keras.optimizers.SGD(LEARNING_RATE)
            optimizer.build(variables)

        def step_of_one() -> None:
            optimizer.apply([FRACTION * variable for variable in variables])

        self._step = tf.function(lambda: strategy.run(step_of_one)).get_concrete_function()
        # After tracing: a step pulls all variables that exist when it is traced.
        with strategy.scope():
            self._variables = [variables, *(model.make_variables() for model in models[1:])]
        self._exchanges = [
            self._make_exchange(*each) for each in zip(models, self._variables, strict=True)
        ]

    def _make_exchange(self, model: Model, variables: list) -> tuple[Callable, Callable]:
        import tensorflow as tf

        from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind

        sgd = OptimizerConfig(kind=OptimizerKind.SGD)
        self._parameters.bind(sgd, [(variable, [], 0.0) for variable in variables])

        @tf.function
        def push(element):
            rate, step = tf.constant(LEARNING_RATE), tf.constant(1)
            self._parameters.stage(variables, model.gradients(element), rate, step)
            self._client.parameters.push(variables)

        @tf.function
        def pull():
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                pulled = self._client.parameters.pull(variables, begins_step=True)
            with tf.control_dependencies([pulled]):
                return tf.timestamp() - begin

        return push, pull

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()
        self._client.flush(PATIENCE)

    def exchange(self, model: int, count: int) -> dict[str, float]:
        """Mean seconds of a push, of the pull after it, and of the pull's op."""
        import tensorflow as tf

        push, pull = self._exchanges[model]
        element = tf.constant(PUSHED)
        before = self._client.stats()
        pushing = pulling = op = 0.0
        for _ in range(count):
            start = time.perf_counter()
            push(element)
            self._client.flush(PATIENCE)
            pushed = time.perf_counter()
            op += float(pull())
            pulling += time.perf_counter() - pushed
            pushing += pushed - start
        pulled = self._client.stats().bytes_pulled - before.bytes_pulled
        if pulled != count * self._models[model].bytes:
            raise AssertionError(f"tfdist: {count} pulls brought {pulled} bytes")
        return {"push": pushing / count, "pull": pulling / count, "pull_op": op / count}

    def verify(self, model: int, steps: int, pushes: int) -> None:
        self._models[model].verify("tfdist", self._variables[model], steps, pushes)


class StockServer:
    """A worker or the parameter server of TensorFlow's job."""

    def __init__(self, cluster: dict[str, list[str]], task_type: str, index: int) -> None:
        import tensorflow as tf

        self._server = tf.distribute.Server(cluster, task_type, index, protocol="grpc")


class StockCoordinator:
    """The coordinator of TensorFlow's job, which schedules the workers' steps."""

    def __init__(self, cluster: dict[str, list[str]], model: Model) -> None:
        import tensorflow as tf

        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster), rpc_layer="grpc"
            )
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._model = model
        with strategy.scope():
            self._variables = variables = model.make_variables()

        def apply(gradients: list) -> None:
            # Equals an SGD optimizer.
            for variable, gradient in zip(variables, gradients, strict=True):
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=LEARNING_RATE, delta=gradient
                )

        def step_of_one() -> None:
            apply([FRACTION * variable for variable in variables])

        @tf.function
        def push(element):
            apply(model.gradients(element))

        @tf.function
        def pull():
            # The worker needs whole variables, and computes almost nothing.
            return tf.add_n([variable[-1] for variable in variables])

        self._step = tf.function(lambda: strategy.run(step_of_one))
        self._push, self._pull = push, pull

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._coordinator.schedule(self._step)
        self._coordinator.join()

    def exchange(self, model: int, count: int) -> dict[str, float]:
        """Mean seconds of a push and of the pull after it, each by an idle worker."""
        import tensorflow as tf

        element = tf.constant(PUSHED)
        pushing = pulling = 0.0
        for _ in range(count):
            start = time.perf_counter()
            self._coordinator.schedule(self._push, args=(element,))
            self._coordinator.join()
            pushed = time.perf_counter()
            self._coordinator.schedule(self._pull)
            self._coordinator.join()
            pulling += time.perf_counter() - pushed
            pushing += pushed - start
        return {"push": pushing / count, "pull": pulling / count}

    def verify(self, model: int, steps: int, pushes: int) -> None:
        self._model.verify("stock", self._variables, steps, pushes)
