"""Callbacks of an elastic `fit` that act on the training in the ways of users' scripts.

Each is a mixin of the callback class of either Keras; see `made`.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import time
from typing import Any

import numpy as np

BATCHES = 4  # of an epoch
TIMEOUT = 60.0


def made(keras: Any, kind: type, *args: Any) -> Any:
    """Returns a callback of a Keras, of one of the classes below."""
    return type(kind.__name__, (kind, keras.callbacks.Callback), {})(*args)


def rate_of(model: Any) -> Any:
    """The variable of the optimizer's rate."""
    return model.optimizer.learning_rate


class Lose:
    """Rank 1 is killed in the first epoch; the other one awaits the next process before a batch.

    That one joins in the step after the batch.

    Args:
      ctx: the worker's context.
      job: the members.
      batch: of the second epoch, from 0.
    """

    model: Any

    def __init__(self, ctx: Any, job: Any, batch: int) -> None:
        super().__init__()
        self._ctx = ctx
        self._job = job
        self._batch = batch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._ctx.rank, self._epoch, batch) == (1, 0, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._job.size == 1 and (self._epoch, batch) == (1, self._batch):
            deadline = time.monotonic() + TIMEOUT
            while not self._job.flags()[0]:
                assert time.monotonic() < deadline, "no newcomer has come"
                time.sleep(0.005)


class RateByCounter:
    """Sets the rate from a counter of its own, before each batch."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        rate_of(self.model).assign(0.05 / (1 + 0.1 * self.steps))


class Multiply:
    """Multiplies a variable before each batch.

    Args:
      variable: a `tf.Variable` of a loss; by default the rate.
      factor: by which.
    """

    model: Any

    def __init__(self, variable: Any = None, factor: float = 0.95) -> None:
        super().__init__()
        self._variable = variable
        self._factor = factor

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        variable = rate_of(self.model) if self._variable is None else self._variable
        variable.assign(variable * self._factor)


class Prune:
    """Scales the weights when an epoch begins, and zeroes the smallest one."""

    model: Any

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        kernel, *others = self.model.get_weights()
        kernel = 0.9 * kernel
        kernel[np.abs(kernel).argmin()] = 0.0
        self.model.set_weights([kernel, *others])


class Noise:
    """Adds noise of its own generators to the weights, around each batch."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self._of_numpy = np.random.default_rng(3)
        self._former = np.random.RandomState(4)
        self._of_python = random.Random(5)

    def _add(self, noise: float) -> None:
        self.model.set_weights([w + 0.01 * noise for w in self.model.get_weights()])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._add(self._of_numpy.normal() + self._of_python.random())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._add(self._former.normal())


class Collect:
    """Keeps what it sees, in attributes of many kinds.

    Args:
      losses: a list that the script holds, too.
    """

    model: Any

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses
        self.newest: Any = collections.deque(maxlen=3)
        self.by_epoch: Any = collections.defaultdict(list)
        self.epochs: set[int] = set()
        self.average: list[np.ndarray] = []
        self.phase = "warm-up"
        self.path = f"/of/process/{os.getpid()}"
        self.function = lambda: self.path

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.add(epoch)
        self.phase = f"epoch {epoch}"
        self._first_rate = float(rate_of(self.model).numpy())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.newest.append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.by_epoch[len(self.epochs)].append(batch)
        weights = self.model.get_weights()
        before = self.average or weights
        self.average = [0.9 * a + 0.1 * w for a, w in zip(before, weights, strict=True)]

    def result(self) -> dict[str, Any]:
        """Its attributes in the end, except a process's own."""
        assert self.path == f"/of/process/{os.getpid()}"
        return {
            "losses": self.losses,
            "newest": list(self.newest),
            "length": self.newest.maxlen,
            "by epoch": dict(self.by_epoch),
            "epochs": sorted(self.epochs),
            "average": self.average,
            "phase": self.phase,
            "first rate": self._first_rate,
        }


class Momentum:
    """Keeps a velocity, and carries it by methods of its own."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self._velocity = _Velocity()

    def get_state(self) -> float:
        return self._velocity.value

    def set_state(self, state: float) -> None:
        self._velocity.value = state

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._velocity.value = 0.8 * self._velocity.value + 1.0
        rate_of(self.model).assign(0.01 * self._velocity.value)


class _Velocity:
    def __init__(self) -> None:
        self.value = 0.0


class Evaluate:
    """Evaluates and predicts when an epoch begins, and sets the rate accordingly.

    Args:
      x: rows.
      y: their targets.
    """

    model: Any

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self._data = (x, y)
        self.results: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        logs = self.model.evaluate(*self._data, batch_size=8, verbose=0, return_dict=True)
        mean = self.model.predict(self._data[0], batch_size=8, verbose=0).mean()
        self.results += [logs["loss"], float(mean)]
        rate_of(self.model).assign(0.02 / (1 + abs(float(mean))))


class UnseededNoise:
    """Adds noise to the weights that differs on each worker.

    Args:
      size: the noise is not larger.
    """

    model: Any

    def __init__(self, size: float) -> None:
        super().__init__()
        self._size = size

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        noise = int.from_bytes(os.urandom(4), "little") / 2**32
        first, *others = self.model.get_weights()
        self.model.set_weights([first + self._size * noise, *others])


class UnseededRate:
    """Sets the rate before each batch to a number that differs on each worker; keeps it."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate_of(self.model).assign(int.from_bytes(os.urandom(4), "little") / 2**36)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(rate_of(self.model).numpy()))
