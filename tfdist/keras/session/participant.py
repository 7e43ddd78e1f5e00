"""One concern of a call of `fit`, `evaluate` or `predict`: the protocol of participants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from tfdist._types import Logs
from tfdist.keras.session.adapter import Distributor, KerasData

if TYPE_CHECKING:
    import tensorflow as tf

# A `Session`, or a `FitSession` of participants that take part in `fit` alone.
_S = TypeVar("_S")


class Participant(Generic[_S]):
    """One concern of a call. Each method does nothing, and may be overridden.

    The methods of a `fit`, in time. Methods without a note are called in the participants' order.

        begin_call                                          last participant first:
        |   open_data  (around Keras's own)
        |   before_fit
        |       callbacks: on_train_begin
        |   begin_fit                                       *
        |   |   begin_epoch
        |   |       callbacks: on_epoch_begin
        |   |   around_steps  (a context: all steps of the epoch)  *
        |   |   |       callbacks: on_train_batch_begin, a step, on_train_batch_end
        |   |   |   after_step
        |   |   results  (around Keras's own)
        |   |   |       callbacks: on_test_batch_begin, a step of a validation, on_test_batch_end
        |   |   |   after_validation_step
        |   |   results  (of the validation)
        |   |   end_epoch
        |   |       callbacks: on_epoch_end
        |   end_fit
        |       callbacks: on_train_end
        end_call                                            *
        lost, if a collective has lacked another worker     *

    `evaluate` and `predict` have `begin_call`, `open_data`, `around_steps`, `end_call` and `lost`.

    Args:
      session: the call.
    """

    def __init__(self, session: _S) -> None:
        self.session = session

    def begin_call(self) -> None:
        """Begins the call; may change its arguments, and enter contexts until it is over."""

    def open_data(
        self, data: KerasData, strategy: tf.distribute.Strategy, make: Callable[[Distributor], None]
    ) -> None:
        """Makes Keras's iterator of the data of this call, or of the validation of a `fit`.

        Args:
          data: the iterator, which is not made yet.
          strategy: distributes the data.
          make: makes the iterator for a strategy.
        """
        make(strategy)

    def before_fit(self) -> None:
        """Begins the training, before the callbacks; the `CallbackList` is known."""

    def begin_fit(self) -> None:
        """Begins the training, after the callbacks, which may have restored a backup."""

    def begin_epoch(self) -> None:
        """Begins an epoch, before its callbacks."""

    def after_step(self, logs: Logs | None) -> None:
        """Ends a step of training, after its callbacks."""

    def around_steps(
        self, steps: contextlib.AbstractContextManager[None], data: KerasData
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager around the steps of an epoch, of `evaluate` or of `predict`.

        Args:
          steps: the one within.
          data: Keras's iterator.
        """
        return steps

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """Returns the logs of an epoch, or of its validation.

        Args:
          logs: the logs of the last step; empty if there was none.
          make: takes them; returns the logs without this participant.
          of_validation: whether the metrics are the validation's.
        """
        return make(logs)

    def after_validation_step(self, logs: Logs | None) -> None:
        """Ends a step of a validation, after its callbacks."""

    def end_epoch(self) -> None:
        """Ends an epoch, before its callbacks."""

    def end_fit(self) -> None:
        """Ends the training, before the callbacks."""

    def end_call(self) -> None:
        """Ends the call, which has a result."""

    def lost(self, error: Exception) -> None:
        """Is told that a collective of the call lacked another worker; may raise another error."""
