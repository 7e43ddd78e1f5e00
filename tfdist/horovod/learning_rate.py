"""Callbacks that set the learning rate, batch by batch.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017: with N ranks the
batch is N times larger, and the rate may be N times larger if it grows gradually in the first
epochs.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable

from tfdist._types import KerasOptimizer
from tfdist.job import process
from tfdist.keras.callback import Callback


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in some epochs.

    With `momentum_correction` the momentum of SGD and RMSprop is scaled by the same factor as the
    rate. The momentum is a sum of earlier steps, each made with the rate of its time, so that a
    sudden change of the rate would act late (Goyal et al., section 3).
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Makes the callback.

        Args:
          initial_lr: the rate that is multiplied.
          multiplier: a function of the epoch, from 0; or a number m, which stands for
            `lambda epoch: m ** (epoch - start_epoch)`: each epoch's rate is m times the one before,
            as in Horovod since 0.20. Before 0.20 the number was the function's value.
          start_epoch: the first epoch, from 0, whose rate this sets.
          end_epoch: the first epoch after that; `None` means no end.
          staircase: set the rate once an epoch. Otherwise it is set before every batch, and the
            function gets fractions of epochs: 2.5 in the middle of the third.
          momentum_correction: see above.
          steps_per_epoch: batches in an epoch; `None` if `fit` knows.

        Raises:
          TypeError: the multiplier is neither.
        """
        super().__init__()
        is_number = isinstance(multiplier, numbers.Real) and not isinstance(multiplier, bool)
        self._multiplier: Callable[[float], float]
        if callable(multiplier):
            self._multiplier = multiplier
        elif is_number:
            factor = float(multiplier)
            self._multiplier = lambda epoch: factor ** (epoch - start_epoch)
        else:
            raise TypeError(
                f"tfdist.callbacks.{type(self).__name__}: expected multiplier to be a function of "
                f"the epoch or a number, received {multiplier!r}"
            )
        self._initial_lr = initial_lr
        self._start_epoch = start_epoch
        self._end_epoch = float("inf") if end_epoch is None else end_epoch
        self._staircase = staircase
        self._momentum_correction = momentum_correction
        self._steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Sets the rate if `staircase`."""
        self._epoch = epoch
        if self._staircase and self._start_epoch <= epoch < self._end_epoch:
            self._set(self._multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Sets the rate unless `staircase`."""
        if not self._staircase and self._start_epoch <= self._epoch < self._end_epoch:
            self._set(self._multiplier(self._epoch + batch / self._steps()))

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the rate to the logs."""
        if logs is not None:
            logs["learning_rate"] = self._rate()

    def _steps(self) -> int:
        steps = self._steps_per_epoch or self.params.get("steps")
        if not steps:
            raise ValueError(
                f"tfdist.callbacks.{type(self).__name__}: expected steps_per_epoch, since `fit` "
                "does not know how many batches the data have"
            )
        return steps

    def _rate(self) -> float:
        return float(self.model.optimizer.learning_rate)

    def _set(self, factor: float) -> None:
        before, after = self._rate(), self._initial_lr * factor
        self.model.optimizer.learning_rate = after
        if self._momentum_correction and before > 0 and after != before:
            for slot in _sums_of_steps(self.model.optimizer):
                slot.assign(slot * (after / before))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from `initial_lr / tfdist.size()` to `initial_lr` in the first epochs.

    The rate grows by the same amount before every batch and reaches `initial_lr` with the last
    batch of the warm-up. Afterwards this callback leaves it unchanged.

    Example:
      tfdist.callbacks.LearningRateWarmupCallback(0.1 * tfdist.size(), warmup_epochs=3)
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Makes the callback.

        Args:
          initial_lr: the rate after the warm-up: the rate for one rank times `tfdist.size()`.
          warmup_epochs: the number of epochs of the warm-up.
          momentum_correction: see `LearningRateScheduleCallback`.
          steps_per_epoch: batches in an epoch; `None` where `fit` knows.
          verbose: 1: rank 0 prints a line at the end of the warm-up; 0: it does not.
        """
        ranks = process.size()

        def share(epoch: float) -> float:
            done = (epoch + 1 / self._steps()) / warmup_epochs  # this batch included
            return (1 + (ranks - 1) * done) / ranks

        super().__init__(
            initial_lr,
            share,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the rate to the logs."""
        super().on_epoch_end(epoch, logs)
        if self._verbose and epoch + 1 == self._end_epoch and process.rank() == 0:
            print(f"epoch {epoch + 1}: the learning rate has come to {self._rate():g}")


def _sums_of_steps(optimizer: KerasOptimizer) -> list:
    """The momentum variables of an optimizer whose momentum holds the learning rate."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "momentum", 0):
        return []
    return getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
