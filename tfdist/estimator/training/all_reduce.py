"""A worker that trains an `Estimator` with `MultiWorkerMirroredStrategy`.

Each worker has a session of its own. An operation that needs all workers, such as saving a variable
as their mean, must run on all at the same step: the other workers then do the same as the chief and
discard the result.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist import ops
from tfdist.data.position import InputPosition
from tfdist.estimator.training import data_tasks
from tfdist.estimator.training.chief_hooks import is_saver, saver_hooks, saving_in, summary_hooks
from tfdist.estimator.training.end_together import BatchAhead, EndTogether, agreed_and_others
from tfdist.estimator.training.input_position import (
    PositionSaver,
    position_of,
    without_first,
)
from tfdist.estimator.training.sessions import SessionCreator, initialized_session, restore
from tfdist.estimator.training.warm_start import warm_start
from tfdist.internals.tensorflow import SyncOnReadVariable, eager_mode
from tfdist.job import process
from tfdist.preemption.training import StoppableSteps

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import (
        EstimatorSpec,
        RunConfig,
        WarmStartSettings,
    )

    from tfdist.strategies import MultiWorkerMirroredStrategy

v1 = tf.compat.v1


class AllReduceWorker:
    """This worker; a context manager around the training.

    Args:
      strategy: the `MultiWorkerMirroredStrategy` of a job of several workers.
      model_dir: the directory of the chief's checkpoints.
    """

    def __init__(self, strategy: MultiWorkerMirroredStrategy, model_dir: str) -> None:
        self._strategy = strategy
        self._model_dir = model_dir
        self._scratch: tempfile.TemporaryDirectory | None = None
        self._batches: BatchAhead
        job = process.current.job
        self.training = StoppableSteps(job.stop_watch if job is not None else None, 0)
        self._batches_before = 0  # of the input, read by a process before this one
        # Whether the variables start from another model's values; on the chief, the operation that
        # reads these.
        self.is_warm = False
        self.read_warm: tf.Operation | None = None

    def __enter__(self) -> AllReduceWorker:
        return self

    def __exit__(self, *error: object) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()

    def read_input(self, call: Callable, goes_on: bool, *arguments: Any, **options: Any) -> Any:
        """Calls the user's input_fn; returns its result from the latest checkpoint's batch on.

        Args:
          call: calls it.
          goes_on: whether the training may continue with the input of another process.
          *arguments: of `call`.
          **options: of `call`.
        """
        result = call(*arguments, **options)
        position = position_of(self.latest_checkpoint()) if goes_on else InputPosition()
        (self._batches_before,) = self.chiefs(position.batches)
        extended = self._strategy.extended
        # Each device of this worker reads a batch in each step.
        return without_first(result, self._batches_before * len(extended.worker_devices))

    def iterator(
        self, make: Callable, *arguments: Any
    ) -> tuple[BatchAhead | Iterator, list[tf.compat.v1.train.SessionRunHook]]:
        """Makes the input's iterator and its hooks."""
        iterator, hooks = make(*arguments)
        self._batches = BatchAhead(iterator)
        return self._batches, hooks

    def call_model_fn(self, call: Callable, *arguments: Any) -> EstimatorSpec:
        """Calls the user's model_fn."""
        return call(*arguments)

    def hooks(
        self, config: RunConfig, spec: EstimatorSpec, hooks: list[tf.compat.v1.train.SessionRunHook]
    ) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns `hooks` with the hooks that this worker needs."""
        agreed, hooks = agreed_and_others(hooks)
        hooks += saver_hooks(config, spec, hooks, self._model_dir)
        if self._strategy.is_chief:
            hooks += spec.training_chief_hooks
            hooks += summary_hooks(config, spec, self._model_dir)
            for hook in filter(is_saver, hooks):
                others = [a for a in hook._listeners if not isinstance(a, PositionSaver)]
                mine = PositionSaver(hook._save_path, self._batches_before)
                hook._listeners = [*others, mine]
        else:
            hooks += [h for h in spec.training_chief_hooks if is_saver(h)]
            hooks = self._save_to_scratch(hooks)
            if config.save_summary_steps:
                steps, writer = config.save_summary_steps, _NoWriter()
                hooks.append(
                    v1.train.SummarySaverHook(steps, summary_writer=writer, scaffold=spec.scaffold)
                )
        for hook in hooks:
            if is_saver(hook) and hook._timer._every_secs and _are_means_saved():
                hook._timer = _ChiefsClock(self, hook._timer._every_secs)
        if self._strategy.is_chief:
            for hook in filter(is_saver, hooks):
                hook._listeners.append(data_tasks.SaveTasks(hook))
        commit = data_tasks.CommitHook(len(self._strategy.extended.worker_devices))
        return [commit, *hooks, EndTogether(self._batches, self._sum), *agreed]

    def _save_to_scratch(
        self, hooks: list[tf.compat.v1.train.SessionRunHook]
    ) -> list[tf.compat.v1.train.SessionRunHook]:
        """Makes hooks save to a scratch directory if a save needs all workers; else drops them."""
        if not _are_means_saved():
            return [h for h in hooks if not is_saver(h)]
        self._scratch = tempfile.TemporaryDirectory(prefix="tfdist-")
        return [saving_in(self._scratch.name, h) if is_saver(h) else h for h in hooks]

    def warm_start(self, settings: WarmStartSettings | None) -> None:
        """Makes all workers start from the chief's warm start; all call it at the same time.

        Args:
          settings: this worker's `WarmStartSettings`, or `None`: `model_to_estimator` gives them to
            the chief alone. The chief's are used, unless it has a checkpoint of this model.

        Raises:
          ValueError: this worker has settings, and the chief has none.
        """
        # Not by the files that each worker finds in model_dir: the chief may have saved a
        # checkpoint by now.
        has_settings, is_new = self.chiefs(settings is not None, self.latest_checkpoint() is None)
        if settings is not None and not has_settings:
            communicator = self._strategy.communicator
            assert communicator is not None  # one worker has the chief's settings
            raise ValueError(
                "warm_start_from: expected the chief's Estimator to have it if any worker's has, "
                f"received {settings.ckpt_to_initialize_from!r} on rank "
                f"{communicator.rank} and none on the chief"
            )
        self.is_warm = bool(has_settings and is_new)
        if self.is_warm and self._strategy.is_chief:
            self.read_warm = warm_start(settings)

    def session_creator(
        self, scaffold: tf.compat.v1.train.Scaffold, config: tf.compat.v1.ConfigProto | None
    ) -> SessionCreator:
        """Returns the creator of the session."""
        return _SessionCreator(self, scaffold, config)

    def latest_checkpoint(self) -> str | None:
        """The chief's latest checkpoint; elsewhere `None`."""
        return tf.train.latest_checkpoint(self._model_dir) if self._strategy.is_chief else None

    def chiefs_checkpoint(self) -> str | None:
        """The chief's latest checkpoint, on all workers; their `model_dir` must have it too."""
        name = os.path.basename(self.latest_checkpoint() or "").encode()
        (size,) = self.chiefs(len(name))
        if not size:
            return None
        name = bytes(self.chiefs(*name.ljust(size)))
        return os.path.join(self._model_dir, name.decode())

    def chiefs(self, *values: int) -> list[int]:
        """Returns the chief's values on all workers."""
        with eager_mode():
            return self._broadcast(tf.constant(values, tf.int64), "decision").numpy().tolist()

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        communicator = self._strategy.communicator
        if communicator is None:
            return value
        return ops.all_reduce(value, communicator, label="end of training", timeout=self._timeout)

    def spread(self, variables: list[tf.Variable]) -> tf.Operation:
        """Returns an operation that gives all workers the chief's values of variables."""
        with tf.device("/device:CPU:0"):
            parts = [
                part
                for variable in variables
                for part in self._strategy.experimental_local_results(variable)
                if part.dtype != tf.string
            ]
            return tf.group([p.assign(self._broadcast(p.read_value(), p.name)) for p in parts])

    def _broadcast(self, value: tf.Tensor, what: str) -> tf.Tensor:
        communicator = self._strategy.communicator
        if communicator is None:
            return value
        return ops.broadcast(
            value, communicator, label=f"the chief's {what}", timeout=self._timeout
        )

    @property
    def _timeout(self) -> float | None:
        return self._strategy.extended._communication_options.timeout_seconds


class _SessionCreator(SessionCreator):
    """Initializes variables equally on all workers, from the chief's checkpoint if it has one."""

    def __init__(
        self,
        worker: AllReduceWorker,
        scaffold: tf.compat.v1.train.Scaffold,
        config: tf.compat.v1.ConfigProto | None,
    ) -> None:
        self._worker = worker
        self._scaffold = scaffold
        self._config = config

    def create_session(self) -> tf.compat.v1.Session:
        """Makes the session; all workers do at the same time."""
        spread = self._worker.spread(v1.global_variables())
        checkpoint = self._worker.latest_checkpoint()
        (restores,) = self._worker.chiefs(checkpoint is not None)
        session = initialized_session(
            self._scaffold, self._config, None if restores else self._give_first_values
        )
        if checkpoint is not None:
            restore(self._scaffold, session, checkpoint)
            data_tasks.restore(checkpoint)
        if restores or self._worker.is_warm or self._scaffold.init_fn is not None:
            session.run(spread)
        return session

    def _give_first_values(self, session: tf.compat.v1.Session) -> None:
        if self._worker.read_warm is not None:
            session.run(self._worker.read_warm)
        if self._scaffold.init_fn is not None:
            self._scaffold.init_fn(session)


class WarmStartHook(tf.compat.v1.train.SessionRunHook):
    """Gives an evaluation without a checkpoint the initial values of a training.

    Args:
      worker: the worker that evaluates; all workers do.
      settings: its `WarmStartSettings`, or `None`.
    """

    def __init__(self, worker: AllReduceWorker, settings: WarmStartSettings | None) -> None:
        self._worker = worker
        self._settings = settings

    def begin(self) -> None:
        """Adds the operations to the graph."""
        self._worker.warm_start(self._settings)
        self._spread = self._worker.spread(v1.global_variables())

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Runs the operations."""
        if self._worker.read_warm is not None:
            session.run(self._worker.read_warm)
        if self._worker.is_warm:
            session.run(self._spread)


class _ChiefsClock(tf.compat.v1.train.SecondOrStepTimer):
    """A timer that triggers on all workers at the same step, by the chief's clock.

    The workers ask the chief about ten times between two triggers.
    """

    def __init__(self, worker: AllReduceWorker, every_secs: float) -> None:
        super().__init__(every_secs=every_secs)
        self._worker = worker
        self._every_secs = every_secs
        self._start = time.monotonic()
        self._last = self._start
        self._steps = 0
        self._next_question = 1
        self._due = False

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it triggers; the hook asks once per step, and again if the answer was yes."""
        if not self._due:
            self._steps += 1
            if self._steps >= self._next_question:
                now = time.monotonic()
                pause = int(self._steps / (now - self._start) * self._every_secs / 10)
                due, pause = self._worker.chiefs(
                    now - self._last >= self._every_secs, max(1, pause)
                )
                self._due, self._next_question = bool(due), self._steps + pause
        return self._due

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes the time of the trigger."""
        self._due, self._last = False, time.monotonic()
        return super().update_last_triggered_step(step)


class _NoWriter:
    """Discards the summaries of workers that are not the chief."""

    def add_summary(self, *_: object) -> None: ...

    def add_session_log(self, *_: object) -> None: ...

    def flush(self) -> None: ...


def _are_means_saved() -> bool:
    """Whether saving the default graph's variables needs all workers."""
    return any(isinstance(v, SyncOnReadVariable) for v in v1.global_variables())
