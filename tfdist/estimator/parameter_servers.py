"""A worker that trains an `Estimator` with `ParameterServerStrategy`.

Its session's variables are a cache, as everywhere with this strategy: a hook pulls before each
step, whose operation ends in a push. The chief begins with its checkpoint, unless the servers have
come further; the others wait for it.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import tensorflow as tf

from tfdist.cluster import Settings
from tfdist.errors import RendezvousTimeoutError
from tfdist.estimator.chief_hooks import saver_hooks, summary_hooks
from tfdist.estimator.sessions import SessionCreator, initialized_session
from tfdist.strategies.parameters import Parameters

v1 = tf.compat.v1
_PAUSE = 0.05


class ParameterServerWorker:
    """One of the workers; the training happens within it.

    Args:
      strategy: the `ParameterServerStrategy`.
      model_dir: where the chief keeps checkpoints.
    """

    def __init__(self, strategy: Any, model_dir: str) -> None:
        self._strategy = strategy
        self._model_dir = model_dir
        self._parameters: Parameters = strategy.extended.parameters
        self._names = self._parameters.names_of(model_dir)
        self._creator: _SessionCreator

    def __enter__(self) -> ParameterServerWorker:
        self._names.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._names.__exit__(*error)

    def call_model_fn(self, call: Any, *arguments: Any) -> Any:
        """Calls the user's model_fn, and lets its step end in a push."""
        spec = call(*arguments)
        with tf.control_dependencies([spec.train_op]):
            return spec._replace(train_op=self._parameters.push_all())

    def hooks(self, config: Any, spec: Any, hooks: list[Any]) -> list[Any]:
        """Returns `hooks` and those of this worker's part."""
        if self._strategy.is_chief:
            hooks += saver_hooks(config, spec, hooks, self._model_dir)
            for hook in hooks:
                if isinstance(hook, v1.train.CheckpointSaverHook):
                    hook._save = functools.partial(self._save, hook._save)
            hooks += spec.training_chief_hooks
            hooks += summary_hooks(config, spec, self._model_dir)
        return [_PullHook(self._parameters), *hooks]

    def session_creator(self, scaffold: Any, config: Any) -> SessionCreator:
        """Returns what makes the session."""
        checkpoints = self._model_dir if self._strategy.is_chief else None
        self._creator = _SessionCreator(self._strategy, scaffold, config, checkpoints)
        return self._creator

    def _save(self, save: Any, session: v1.Session, step: int) -> Any:
        """Saves what the servers hold now, under the step that they have come to."""
        self._creator.pull(session)
        return save(session, self._creator.step(session))


class _PullHook(v1.train.SessionRunHook):
    """Begins each step."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def begin(self) -> None:
        self._pull = self._parameters.pull_all(of_step=True)

    def before_run(self, run_context: Any) -> None:
        run_context.session.run(self._pull)


class _SessionCreator(SessionCreator):
    """Makes sessions whose variables are the servers'.

    Args:
      strategy: the `ParameterServerStrategy`.
      scaffold: of the graph.
      config: of the session.
      checkpoints: the directory of those that the chief may begin with; `None` on other workers.
    """

    def __init__(self, strategy: Any, scaffold: Any, config: Any, checkpoints: str | None) -> None:
        self._strategy = strategy
        self._scaffold = scaffold
        self._config = config
        self._checkpoints = checkpoints

    def create_session(self) -> v1.Session:
        """Makes the session.

        Raises:
          RendezvousTimeoutError: the chief has not made its own in time.
        """
        parameters = self._strategy.extended.parameters
        variables = parameters.variables()
        with self._strategy.scope():
            # Of the workers, not of the model: no checkpoint has it.
            ready = v1.get_variable(
                "tfdist_ready",
                initializer=tf.zeros([], tf.int64),
                trainable=False,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
            )
        # What began with a checkpoint's values by an initializer of its own is new to the servers.
        create = tf.group(
            [
                tf.raw_ops.AssignVariableOp(
                    resource=v.handle,
                    value=parameters.initial_value(v.parameter, v.read_value()),
                )
                for v in variables
            ]
        )
        write, tell = parameters.write(variables), ready.assign(1).op
        self._is_ready = ready.read_value()
        self._step = v1.train.get_global_step().read_value()
        self._pull = parameters.pull_all(of_step=False)
        session = initialized_session(self._scaffold, self._config)
        session.run(create)
        if self._checkpoints is None:
            self._wait_for_chief(session)
        else:
            if self._restore(session):
                session.run(write)
            session.run(tell)
        return session

    def pull(self, session: v1.Session) -> None:
        """Brings the session's variables up to date, outside of a step."""
        session.run(self._pull)

    def step(self, session: v1.Session) -> int:
        """The global step, as the session has it."""
        return int(session.run(self._step))

    def _restore(self, session: v1.Session) -> bool:
        """Restores the latest checkpoint, unless the servers have come further than that."""
        path = tf.train.latest_checkpoint(self._checkpoints)
        if path is None:
            return False
        saved = int(tf.train.load_variable(path, v1.GraphKeys.GLOBAL_STEP))
        if saved < self.step(session):
            return False
        self._scaffold.saver.restore(session, path)
        return True

    def _wait_for_chief(self, session: v1.Session) -> None:
        timeout = Settings.from_environment().rendezvous_timeout
        deadline = time.monotonic() + timeout
        while True:
            self.pull(session)
            if session.run(self._is_ready):
                return
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(
                    f"rank {self._strategy.extended.rank}: the chief did not give the parameter "
                    f"servers the model's first values within {timeout:g} s"
                )
            time.sleep(_PAUSE)
