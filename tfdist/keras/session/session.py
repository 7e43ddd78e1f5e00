"""The calls of `fit`, `evaluate` and `predict` that run in this thread, innermost last.

A callback may make another call, on the same model or another one. A `fit` that validates calls
`evaluate` itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tfdist._types import KerasModel, Logs
from tfdist.keras.callback import Callback, with_callback
from tfdist.keras.session.adapter import Adapter, Arguments, KerasData
from tfdist.keras.session.participant import Participant
from tfdist.tracebacks import note_place

if TYPE_CHECKING:
    import tensorflow as tf
    from keras.callbacks import CallbackList

_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind", bound=Participant)


class Session:
    """One call of `fit`, `evaluate` or `predict`.

    Args:
      kind: the name of the function.
      keras: the adapter of the model's Keras.
      model: the model; `None` if data is opened outside of any call.
      strategy: distributes the data.
      arguments: of the call, by name, without the model. Participants may change them before Keras
        gets them.

    Attributes:
      kind, keras, model, strategy, arguments: as in the arguments.
      participants: the participants of this call, in their order.
    """

    def __init__(
        self,
        kind: str,
        keras: Adapter,
        model: KerasModel,
        strategy: tf.distribute.Strategy,
        arguments: Arguments,
    ) -> None:
        self.kind = kind
        self.keras = keras
        self.model = model
        self.strategy = strategy
        self.arguments = arguments
        self.participants: Sequence[Participant] = ()
        self._cleanup = contextlib.ExitStack()

    def participant(self, kind: type[_Kind]) -> _Kind | None:
        """The participant of a class; `None` if it does not take part."""
        return next((one for one in self.participants if isinstance(one, kind)), None)

    def add_callback(self, callback: Callback, *, first: bool = False) -> None:
        """Adds a callback to the call's, before it begins.

        Args:
          callback: ours.
          first: whether it runs before the user's callbacks; else it runs after them.
        """
        given = self.arguments.get("callbacks")
        added = with_callback(given, callback, first=first)
        self.arguments["callbacks"] = self._cleanup.enter_context(added)

    def enter(self, context: contextlib.AbstractContextManager[object]) -> None:
        """Enters a context until the call is over."""
        self._cleanup.enter_context(context)

    def call_at_end(self, function: Callable[[], None]) -> None:
        """Calls a function when the call is over."""
        self._cleanup.callback(function)

    @property
    def validated_fit(self) -> FitSession | None:
        """The `fit` whose validation this call of `evaluate` is; `None` if it is none."""
        further = self.arguments.get("kwargs") or {}
        return fit_of(self.model) if further.get("_use_cached_eval_dataset") else None

    def run(
        self, call: Callable[[Arguments], _Result], lost: tuple[type[Exception], ...]
    ) -> _Result:
        """Makes the call with all participants.

        Args:
          call: takes the arguments; returns the result.
          lost: the errors of a collective that lacks another worker.
        """
        with self._cleanup, running(self):
            try:
                for one in self.participants:
                    one.begin_call()
                result = call(self.arguments)
                for one in reversed(self.participants):
                    one.end_call()
                return result
            except lost as error:
                for one in reversed(self.participants):
                    one.lost(error)
                raise
            except KeyboardInterrupt as error:
                if self.place:
                    note_place(error, self.place)
                raise

    @property
    def place(self) -> str:
        """Where the call stands, such as "epoch 2, step 17"; empty if it counts no steps."""
        return ""


class FitSession(Session):
    """One `fit`, and where it stands.

    Attributes:
      callbacks: Keras's `CallbackList`; `None` before the training begins.
      data: Keras's iterator of the training data; `None` before it was made.
      epoch: the current epoch, from 0; the next one after the steps of an epoch and its validation.
      batch: the next batch of this epoch, from 0; within a step, the first one after it.
      last_batch: the batch of its epoch that was trained last, from 0; -1 before the first one.
      in_step: how many batches the step has whose callbacks have begun; 0 between two steps.
      has_begun: whether the first epoch has begun.
    """

    def __init__(
        self,
        kind: str,
        keras: Adapter,
        model: KerasModel,
        strategy: tf.distribute.Strategy,
        arguments: Arguments,
    ) -> None:
        super().__init__(kind, keras, model, strategy, arguments)
        self.callbacks: Any = None
        self.data: KerasData = None
        self.epoch = 0
        self.batch = 0
        self.last_batch = -1
        self.in_step = 0
        self.has_begun = False

    @property
    def place(self) -> str:
        """See `Session`."""
        return f"epoch {self.epoch + 1}, step {self.last_batch + 2}" if self.has_begun else ""

    def begin_fit(self, callbacks: CallbackList, call: Callable[[], None]) -> None:
        """Lets the callbacks begin.

        Args:
          callbacks: Keras's `CallbackList`.
          call: calls the callbacks' `on_train_begin`.
        """
        self.callbacks = callbacks
        for one in self.participants:
            one.before_fit()
        call()
        for one in reversed(self.participants):
            one.begin_fit()

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, before its callbacks are called; `epoch` counts from 0."""
        self.epoch, self.batch, self.last_batch, self.in_step = epoch, 0, -1, 0
        self.has_begun = True
        for one in self.participants:
            one.begin_epoch()

    def step_is_done(self) -> None:
        """Is called after the callbacks of a step: the state is that after it from now on."""
        self.in_step = 0

    def end_step(self, batch: int, logs: Logs | None) -> None:
        """Ends a step, after its callbacks were called.

        Args:
          batch: its last batch, from 0.
          logs: its logs.
        """
        self.last_batch = batch
        for one in self.participants:
            one.after_step(logs)

    def end_validation_step(self, logs: Logs | None) -> None:
        """Ends a step of a validation, after its callbacks were called."""
        for one in self.participants:
            one.after_validation_step(logs)

    def end_epoch(self) -> None:
        """Ends an epoch, before its callbacks are called: they save the beginning of the next."""
        self.epoch, self.batch = self.epoch + 1, 0
        for one in self.participants:
            one.end_epoch()

    def end_fit(self) -> None:
        """Ends the training, before the callbacks' `on_train_end`."""
        for one in self.participants:
            one.end_fit()

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """Returns the logs of an epoch, or of its validation.

        Args:
          logs: the logs of the last step; empty if there was none.
          make: takes them; returns Keras's logs of the epoch.
          of_validation: whether the metrics are the validation's.
        """
        for one in reversed(self.participants):
            make = _around(one, make, of_validation)
        return make(logs)


def _around(
    one: Participant, make: Callable[[Logs], Logs], validates: bool
) -> Callable[[Logs], Logs]:
    return lambda logs: one.results(logs, make, of_validation=validates)


class _Running(threading.local):
    def __init__(self) -> None:
        self.sessions: list[Session] = []


_running = _Running()


@contextlib.contextmanager
def running(session: Session) -> Iterator[None]:
    """Lets the functions below find a session for the duration of a `with` block."""
    _running.sessions.append(session)
    try:
        yield
    finally:
        _running.sessions.remove(session)


def newest() -> Session | None:
    """The call that began last, and has not ended."""
    return _running.sessions[-1] if _running.sessions else None


def newest_fit() -> FitSession | None:
    """The `fit` that began last, and has not ended."""
    return next((s for s in reversed(_running.sessions) if isinstance(s, FitSession)), None)


def fits() -> list[FitSession]:
    """All calls of `fit`, the outermost first."""
    return [s for s in _running.sessions if isinstance(s, FitSession)]


def is_in_fit_of(kind: type[Participant]) -> bool:
    """Whether a class of participants takes part in a `fit` that has not ended."""
    return any(fit.participant(kind) is not None for fit in fits())


def fit_of(model: KerasModel) -> FitSession | None:
    """The newest `fit` of a model."""
    return next((fit for fit in reversed(fits()) if fit.model is model), None)


def fit_of_callbacks(callbacks: CallbackList) -> FitSession | None:
    """The `fit` that has this `CallbackList`; `evaluate` in a callback has one of its own."""
    return next((fit for fit in reversed(fits()) if fit.callbacks is callbacks), None)


def fit_that_reads(data: KerasData) -> FitSession | None:
    """The `fit` whose training data an iterator of Keras is."""
    return next((fit for fit in reversed(fits()) if fit.data is data), None)
