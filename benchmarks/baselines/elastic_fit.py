"""A worker that trains until it is ended, and reports its steps, for benchmarks/elastic.py.

    tfdist run ... elastic_fit.py SOCKET WIDTH WORKERS BACKUP

runs it as a worker of an ordinary job, which saves in the folder BACKUP. `train` makes the process
that calls it a worker of an elastic job.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# As a script, the first; else the second.
try:
    from step_reports import Reporter
except ModuleNotFoundError:
    from baselines.step_reports import Reporter

INPUTS, CLASSES, EXAMPLES = 1024, 10, 4096
BATCH = 64  # of each worker at the job's start
SAVED_EVERY = 10  # steps, in jobs that save
RATE = 1e-4


def train(
    socket: str, worker: int, width: int, workers: int, job: dict[str, str], log: str
) -> None:
    """Trains in an elastic job.

    Args:
      socket: of the inbox.
      worker: this process's index.
      width: of the hidden layers.
      workers: that the job starts with.
      job: the environment variables of the worker.
      log: the file that receives stdout and stderr.
    """
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(job)
    reporter = Reporter(socket, worker)
    _report_changes(reporter)
    _fit(reporter, width, workers, [])


def losses(width: int, workers: int, steps: int) -> list[float]:
    """The loss of each step in one process of plain Keras."""
    import keras

    found: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.append(float(logs["loss"]))
    )
    model, data = _model(width), _data(workers)
    model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[note])
    return found


class Reference:
    """Plain Keras in its own process."""

    def losses(self, width: int, workers: int, steps: int) -> list[float]:
        """See `losses`."""
        return losses(width, workers, steps)


def _fit(reporter: Reporter, width: int, workers: int, callbacks: list) -> None:
    import keras
    import tensorflow as tf

    import tfdist

    tf.config.threading.set_intra_op_parallelism_threads(1)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = _model(width)

    def report(batch: int, logs: dict[str, Any]) -> None:
        reporter.send(
            "step",
            step=int(model.optimizer.iterations.numpy()),
            rank=tfdist.rank(),
            size=tfdist.size(),
            loss=float(logs["loss"]),
        )

    callbacks = [*callbacks, keras.callbacks.LambdaCallback(on_train_batch_end=report)]
    model.fit(_data(workers), steps_per_epoch=10**6, shuffle=False, verbose=0, callbacks=callbacks)


def _model(width: int) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    hidden = [layers.Dense(width, "relu") for _ in range(2)]
    model = keras.Sequential([layers.Input((INPUTS,)), *hidden, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(RATE), loss)
    return model


def _data(workers: int) -> Any:
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(2)
    x = random.normal(size=(EXAMPLES, INPUTS)).astype(np.float32)
    y = random.integers(CLASSES, size=EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH * workers)


def _report_changes(reporter: Reporter) -> None:
    """Reports when this worker begins to form the next generation, and when it has."""
    from tfdist.elastic.membership import Membership

    form = Membership.form

    def reported(self: Membership, *args: Any, **kwargs: Any) -> Any:
        reporter.send("forming")
        world = form(self, *args, **kwargs)
        reporter.send("formed", rank=world.rank, size=world.size)
        return world

    Membership.form = reported


def main(socket: str, width: int, workers: int, backup: str) -> None:
    """Trains in an ordinary job, which saves."""
    import keras

    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    saves = keras.callbacks.BackupAndRestore(backup, save_freq=SAVED_EVERY)
    _fit(Reporter(socket, worker), width, workers, [saves])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
