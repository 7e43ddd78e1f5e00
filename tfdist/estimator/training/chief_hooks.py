"""The hooks of a job's chief: checkpoints, summaries, the count of steps."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.ops.trace import events

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import EstimatorSpec, RunConfig

v1 = tf.compat.v1


class RecordedSaves(tf.compat.v1.train.CheckpointSaverListener):
    """Records each checkpoint of a saving hook as a span."""

    def __init__(self) -> None:
        self._span = contextlib.ExitStack()

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Begins the span."""
        self._span.enter_context(events.span("checkpoint", f"global step {global_step_value}"))

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Ends the span."""
        self._span.close()


def is_saver(hook: object) -> bool:
    """Whether a hook saves checkpoints."""
    return isinstance(hook, v1.train.CheckpointSaverHook)


def saver_hooks(
    config: RunConfig,
    spec: EstimatorSpec,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
    directory: str,
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns the hook that saves checkpoints by `config`, unless the user has given one."""
    wanted = config.save_checkpoints_secs or config.save_checkpoints_steps
    if not wanted or any(is_saver(h) for h in [*hooks, *spec.training_chief_hooks]):
        return []
    return [
        v1.train.CheckpointSaverHook(
            directory,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=spec.scaffold,
            save_graph_def=config.checkpoint_save_graph_def,
        )
    ]


def saving_in(
    directory: str, hook: tf.compat.v1.train.CheckpointSaverHook
) -> tf.compat.v1.train.CheckpointSaverHook:
    """Returns a copy of a saving hook that saves to another directory."""
    other = copy.copy(hook)
    other._checkpoint_dir = directory
    other._save_path = os.path.join(directory, os.path.basename(hook._save_path))
    other._listeners = []
    return other


def summary_hooks(
    config: RunConfig, spec: EstimatorSpec, directory: str
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns the hooks that write steps per second and summaries, by `config`."""
    hooks = []
    if config.log_step_count_steps:
        hooks.append(
            v1.train.StepCounterHook(
                every_n_steps=config.log_step_count_steps, output_dir=directory
            )
        )
    if config.save_summary_steps:
        hooks.append(
            v1.train.SummarySaverHook(
                save_steps=config.save_summary_steps, output_dir=directory, scaffold=spec.scaffold
            )
        )
    return hooks
