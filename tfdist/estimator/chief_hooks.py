"""What the chief of a job does besides training: checkpoints, summaries, the count of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def saver_hooks(config: Any, spec: Any, hooks: Sequence[Any], directory: str) -> list[Any]:
    """Returns the hook that saves checkpoints as `config` says, unless the user brought one."""
    wanted = config.save_checkpoints_secs or config.save_checkpoints_steps
    if not wanted or any(isinstance(h, v1.train.CheckpointSaverHook) for h in hooks):
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


def summary_hooks(config: Any, spec: Any, directory: str) -> list[Any]:
    """Returns the hooks that write the speed and the summaries, as `config` says."""
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
