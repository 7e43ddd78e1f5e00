"""A worker that trains an `Estimator` with `ParameterServerStrategy`.

Its session's variables are a cache, as always with this strategy: a hook pulls before each step,
and the step's operation ends in a push. The chief restores its checkpoint, unless the servers are
at a later step.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.estimator.training import data_tasks, server_optimizers, tables
from tfdist.estimator.training.chief_hooks import is_saver, saver_hooks, summary_hooks
from tfdist.estimator.training.end_together import BatchAhead, EndTogether, agreed_and_others
from tfdist.estimator.training.model_dir import step_of
from tfdist.estimator.training.preemption import StopAtNotice
from tfdist.estimator.training.sessions import SessionCreator, initialized_session, restore
from tfdist.estimator.training.warm_start import warm_start
from tfdist.estimator.training.worker_states import BeginHook, EndHook, WorkerStates
from tfdist.job import process
from tfdist.preemption.training import StoppableSteps
from tfdist.strategies._variables.parameters import Parameters

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import (
        EstimatorSpec,
        RunConfig,
        WarmStartSettings,
    )

    from tfdist.strategies import ParameterServerStrategy

v1 = tf.compat.v1


class ParameterServerWorker:
    """This worker; a context manager around the training.

    Args:
      strategy: the `ParameterServerStrategy`.
      model_dir: the directory of the chief's checkpoints.
    """

    def __init__(self, strategy: ParameterServerStrategy, model_dir: str) -> None:
        self._strategy = strategy
        self._model_dir = model_dir
        self._parameters: Parameters = strategy.extended.parameters
        self._contexts = contextlib.ExitStack()
        self._building = contextlib.ExitStack()
        self._batches: BatchAhead
        self._bindings: server_optimizers.Bindings
        self._creator: _SessionCreator
        self._read_warm: tf.Operation | None = None
        self._training = 0
        self._last_step = math.inf
        member = process.current.ps_worker
        self.training = StoppableSteps(member.stop_watch if member is not None else None, None)

    def __enter__(self) -> ParameterServerWorker:
        self._parameters.has_trained = True
        training = self._parameters.training_of(self._model_dir)
        self._training = self._contexts.enter_context(training)
        # The pull of all variables is added when the graph is complete.
        self._building.enter_context(self._parameters.unordered_step())
        return self

    def __exit__(self, *error: object) -> None:
        self._building.close()
        self._contexts.close()

    def read_input(self, call: Callable, goes_on: bool, *arguments: Any, **options: Any) -> Any:
        """Calls the user's input_fn; each worker begins its input again.

        The servers may be at a later step than the latest checkpoint, and this worker at another
        one than they.
        """
        return call(*arguments, **options)

    def iterator(
        self, make: Callable, *arguments: Any
    ) -> tuple[BatchAhead | Iterator, list[tf.compat.v1.train.SessionRunHook]]:
        """Makes the input's iterator and its hooks."""
        iterator, hooks = make(*arguments)
        if self._ends_together:
            iterator = self._batches = BatchAhead(iterator)
        return iterator, hooks

    def call_model_fn(self, call: Callable, *arguments: Any) -> EstimatorSpec:
        """Calls the user's model_fn, and adds a push to the end of its step."""
        self._bindings = server_optimizers.Bindings.of_this_graph()
        spec = call(*arguments)
        with tf.control_dependencies([spec.train_op]):
            return spec._replace(train_op=self._parameters.push_all())

    def session_creator(
        self, scaffold: tf.compat.v1.train.Scaffold, config: tf.compat.v1.ConfigProto | None
    ) -> SessionCreator:
        """Returns the creator of the session."""
        checkpoints = self._model_dir if self._strategy.is_chief else None
        self._creator = _SessionCreator(
            self._strategy,
            scaffold,
            config,
            checkpoints,
            self._training,
            self._bindings,
            self._read_warm,
        )
        return self._creator

    def hooks(
        self, config: RunConfig, spec: EstimatorSpec, hooks: list[tf.compat.v1.train.SessionRunHook]
    ) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns `hooks` with the hooks that this worker needs."""
        self._building.close()
        hooks = [EndHook(self._end), data_tasks.CommitHook(), *hooks]
        if self._strategy.is_chief:
            hooks += saver_hooks(config, spec, hooks, self._model_dir)
            hooks += spec.training_chief_hooks
            for hook in filter(is_saver, hooks):
                hook._save = functools.partial(self._save, hook)
                self._contexts.callback(hook.__dict__.pop, "_save")
            hooks += summary_hooks(config, spec, self._model_dir)
        else:
            hooks = [h for h in hooks if not is_saver(h)]
        agreed, hooks = agreed_and_others(hooks)
        last_steps = [h._last_step for h in agreed if h._last_step is not None]
        self._last_step = min(last_steps, default=math.inf)
        if self._ends_together:
            total = functools.partial(self._parameters.all_reduce, divisor=None)
            hooks.append(EndTogether(self._batches, total))
        else:
            hooks.append(StopAtNotice(self.training))
        # After all hooks that may make variables.
        hooks += [*agreed, _PullHook(self._parameters, agreed)]
        if self._strategy.is_chief:
            # The others wait until the chief has saved its first checkpoint.
            hooks.append(BeginHook(lambda session: self._creator.begin_training(session)))
        return hooks

    @property
    def _ends_together(self) -> bool:
        """Whether a step needs all workers."""
        config = self._strategy.extended.config
        return config.mode == "sync" and config.num_aggregate == config.workers

    def _end(self, session: tf.compat.v1.Session) -> None:
        self._creator.states.end(session, lambda: self._creator.pull(session), self._last_step)

    def warm_start(self, settings: WarmStartSettings | None) -> None:
        """Starts the model from the values of a checkpoint, unless it has one of its own.

        The chief writes them to the servers; the other workers start from the servers' values.
        """
        is_new = tf.train.latest_checkpoint(self._model_dir) is None
        if settings is not None and self._strategy.is_chief and is_new:
            self._read_warm = warm_start(settings)

    def _save(
        self, hook: tf.compat.v1.train.CheckpointSaverHook, session: tf.compat.v1.Session, step: int
    ) -> bool | None:
        """Saves the servers' current values, under the servers' current step."""
        # Before the values: the records committed here have reached the servers.
        state = data_tasks.state()
        step = self._creator.pull(session)
        data_tasks.save(f"{hook._save_path}-{step}", state)
        tables.save(self._parameters, f"{hook._save_path}-{step}")
        wants_to_stop = type(hook)._save(hook, session, step)
        tables.remove_old(os.path.dirname(hook._save_path))
        return wants_to_stop


class _PullHook(tf.compat.v1.train.SessionRunHook):
    """Begins each step with a pull, or ends the training if other workers made the last step.

    Args:
      parameters: the strategy's.
      stops: hooks that know the last step.
    """

    def __init__(
        self, parameters: Parameters, stops: list[tf.compat.v1.train.StopAtStepHook]
    ) -> None:
        self._parameters = parameters
        self._stops = stops

    def begin(self) -> None:
        with tf.control_dependencies([self._parameters.pull_all(begins_step=True)]):
            self._step = v1.train.get_global_step().read_value()

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        step = run_context.session.run(self._step)
        if any(step >= hook._last_step for hook in self._stops):
            raise tf.errors.OutOfRangeError(None, None, "the last step has been made")


class _SessionCreator(SessionCreator):
    """Makes a session whose variables are the servers'.

    Args:
      strategy: the `ParameterServerStrategy`.
      scaffold: of the graph.
      config: of the session.
      checkpoints: the directory of the checkpoints that the chief may restore; `None` on other
        workers.
      training: the number of this training of the model.
      bindings: the optimizers that the servers run.
      read_warm: reads another model's values into the variables; `None` without a warm start.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        scaffold: tf.compat.v1.train.Scaffold,
        config: tf.compat.v1.ConfigProto | None,
        checkpoints: str | None,
        training: int,
        bindings: server_optimizers.Bindings,
        read_warm: tf.Operation | None,
    ) -> None:
        self._strategy = strategy
        self._scaffold = scaffold
        self._config = config
        self._checkpoints = checkpoints
        self._training = training
        self._bindings = bindings
        self._read_warm = read_warm
        self.states: WorkerStates

    def create_session(self) -> tf.compat.v1.Session:
        """Makes the session; on other workers than the chief, once the chief has begun to train.

        Raises:
          RendezvousTimeoutError: the chief has not begun in time.
        """
        parameters = self._strategy.extended.parameters
        variables = parameters.variables()
        # Values that an initializer restored from another checkpoint are new to the servers.
        create = [
            tf.raw_ops.AssignVariableOp(
                resource=v.handle, value=parameters.initial_value(v.parameter, v.read_value())
            )
            for v in variables
        ]
        write = parameters.write(variables)
        with self._strategy.scope():
            self.states = WorkerStates(self._strategy, self._training)
        self._pull = parameters.pull_all(begins_step=False)
        self._step = v1.train.get_global_step().read_value()
        session = initialized_session(self._scaffold, self._config)
        session.run(create)
        self._bindings.bind(parameters)
        if self._checkpoints is None:
            self.begin_training(session)
            self.pull(session)  # hooks read the chief's initial step
        elif self._begin(session, self._checkpoints):
            session.run(write)
        return session

    def begin_training(self, session: tf.compat.v1.Session) -> None:
        """Publishes that this worker has begun, and waits for the chief."""
        self.states.begin(session, process.current.settings.rendezvous_timeout)

    def pull(self, session: tf.compat.v1.Session) -> int:
        """Pulls the variables outside of a step; returns the global step."""
        session.run(self._pull)
        return int(session.run(self._step))

    def _begin(self, session: tf.compat.v1.Session, checkpoints: str) -> bool:
        """Restores the latest checkpoint, unless the servers are at a later step.

        Returns:
          Whether the variables have changed.
        """
        path = tf.train.latest_checkpoint(checkpoints)
        step = session.run(self._step)
        if path is None and step == 0 and (self._read_warm is not None or self._scaffold.init_fn):
            if self._read_warm is not None:
                session.run(self._read_warm)
            if self._scaffold.init_fn is not None:
                self._scaffold.init_fn(session)
            return True
        if path is None or step_of(path) < step:
            return False
        restore(self._scaffold, session, path)
        tables.restore(self._strategy.extended.parameters, path)
        data_tasks.restore(path)
        return True
