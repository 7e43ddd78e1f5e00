"""`tfdist.callbacks.OnRankZero`: a callback of one's own that one worker calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasCallback, KerasModel
from tfdist.elastic.values import broadcast_bytes
from tfdist.job import process
from tfdist.keras import rank_zero
from tfdist.keras.callback import Callback
from tfdist.keras.one_worker import expect_callable_by_one, without_others
from tfdist.keras.workers import is_ours, rank_of


@dataclasses.dataclass
class _Call:
    """Where the wrapped callback is; no number among the attributes, which newcomers would receive.

    Attributes:
      callback: the wrapped callback; `None` before this worker needs it.
      is_set: whether it has the model and the parameters of the present `fit`.
      trains: whether `fit` has begun.
      has_begun: whether its `on_train_begin` was called in this `fit`.
      logs: of `on_train_begin`.
      numbers: the attributes of rank 0's callback when the members last met.
    """

    callback: KerasCallback | None = None
    is_set: bool = False
    trains: bool = False
    has_begun: bool = False
    logs: dict | None = None
    numbers: dict[str, float | None] = dataclasses.field(default_factory=dict)


class OnRankZero(Callback):
    """Calls a callback on rank 0 alone, for `fit`, `evaluate` and `predict` of both Kerases.

    Give it to all workers. On the others nothing of the wrapped callback is called, and a function
    that makes it is not, either. So it must not need the other workers. In a job that is not
    elastic `ModelCheckpoint` needs them if all workers read one of the model's variables together,
    such as statistics of BatchNormalization, and with `LocalUpdateStrategy`; `BackupAndRestore`
    always does. `fit` refuses these when it begins: pass them without `OnRankZero`. A call of
    another callback that needs all workers raises ValueError.

    In an elastic job the next rank 0 takes over when rank 0 is lost or leaves. Its callback is made
    and gets `set_params`, `set_model` and `on_train_begin`; then it gets the numbers that the one
    before had in its attributes (bool, int, float, None) at the end of the last epoch, as a
    newcomer's callbacks do. A call during which rank 0 was lost is made again: `on_epoch_end` and
    `on_train_end` with the model as it was, other calls before the next step. So a call should do
    no harm twice, as writing a file or logging a value for a step does not.

    Example:
      model.fit(data, callbacks=[tfdist.callbacks.OnRankZero(MyLogger("run 7"))])
    """

    def __init__(self, callback: KerasCallback | Callable[[], KerasCallback]) -> None:
        """Makes the callback.

        Args:
          callback: of the Keras that trains; or a function without arguments that returns it, which
            is called on rank 0 when the callback is first needed.

        Raises:
          TypeError: it is neither.
        """
        is_callback = hasattr(callback, "set_model") and not isinstance(callback, type)
        if not is_callback and not callable(callback):
            raise TypeError(
                "OnRankZero: expected a callback, or a function that returns one, received "
                f"{callback!r}"
            )
        super().__init__()
        self._make: Callable[[], KerasCallback] = (lambda: callback) if is_callback else callback
        self._given = callback if is_callback else None
        self._call = _Call()

    def set_params(self, params: dict) -> None:
        """Keeps the parameters of `fit` for the wrapped callback."""
        super().set_params(params)
        self._call.is_set = False

    def set_model(self, model: KerasModel) -> None:
        """Keeps the model for the wrapped callback."""
        super().set_model(model)
        self._call.is_set = False

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Takes over, if this is rank 0.

        Raises:
          ValueError: one worker cannot call the callback; says why.
        """
        if self._given is not None:
            expect_callable_by_one(self._given, self.model)  # on all workers
        self._call.trains, self._call.has_begun = True, False
        self._call.logs, self._call.numbers = logs, {}
        self._on_rank_0("on_train_begin", self._take_over)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_train_end", logs)
        self._meet()
        self._call.trains = False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_epoch_end", epoch, logs)
        self._meet()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_train_batch_end", batch, logs)

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_test_begin", logs)

    def on_test_end(self, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_test_end", logs)

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_test_batch_end", batch, logs)

    def on_predict_begin(self, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_predict_begin", logs)

    def on_predict_end(self, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_predict_end", logs)

    def on_predict_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_predict_batch_begin", batch, logs)

    def on_predict_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Calls the wrapped callback's on rank 0."""
        self._forward("on_predict_batch_end", batch, logs)

    # tf_keras asks which hooks a callback has.
    def _implements_train_batch_hooks(self) -> bool:
        return self._implements("_implements_train_batch_hooks")

    def _implements_test_batch_hooks(self) -> bool:
        return self._implements("_implements_test_batch_hooks")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._implements("_implements_predict_batch_hooks")

    def _implements(self, question: str) -> bool:
        ask = getattr(self._given, question, None)
        return True if ask is None else bool(ask())

    def _forward(self, hook: str, *arguments: object) -> None:
        self._on_rank_0(hook, lambda: getattr(self._take_over(), hook)(*arguments))

    def _on_rank_0(self, hook: str, call: Callable[[], object]) -> None:
        what = f"{hook} of {self._in_words()}"
        if rank_zero.is_left_to_rank_0(self.model):
            rank_zero.owe(self.model, what, call)
        elif self._rank() == 0:
            with without_others(self._received(), self.model):
                call()

    def _rank(self) -> int:
        if is_ours(self.model.distribute_strategy):
            return rank_of(self.model)
        return process.rank() if process.is_initialized() else 0

    def _take_over(self) -> KerasCallback:
        """Returns the wrapped callback, which has begun."""
        state = self._call
        if state.callback is None:
            state.callback = self._make()
            if not hasattr(state.callback, "set_model"):
                raise TypeError(
                    "OnRankZero: expected a function that returns a callback, received a function "
                    f"that returns {state.callback!r}"
                )
        if not state.is_set:
            state.callback.set_params(self.params)
            state.callback.set_model(self.model)
            state.is_set = True
        if state.trains and not state.has_begun:
            expect_callable_by_one(state.callback, self.model)
            state.callback.on_train_begin(state.logs)
            rank_zero.take_numbers(state.callback, state.numbers)
            state.has_begun = True
        return state.callback

    def _meet(self) -> None:
        """Waits for the call of rank 0, and receives the numbers of its callback."""
        job = rank_zero.will_meet(self)
        if job is None:
            return
        label = f"the numbers of {self._in_words()}"

        def receive() -> bytes:
            own = json.dumps(self._numbers()).encode() if job.rank == 0 else b""
            content = broadcast_bytes(own, job.communicator, 0, label)
            # A broadcast alone would let rank 0 continue before the others.
            with tf.device("/device:CPU:0"):
                ops.all_reduce(tf.constant(0), job.communicator, "max", label=label)
            return content

        content = rank_zero.meet(self, receive)
        if content is not None:  # else the others have done it, and keep the numbers
            self._call.numbers = json.loads(content)

    def _numbers(self) -> dict[str, float | None]:
        """The numbers of the callback of rank 0, as far as this worker knows them."""
        state = self._call
        return rank_zero.numbers_of(state.callback) if state.has_begun else state.numbers

    def _in_words(self) -> str:
        return type(self).__name__ if self._given is None else type(self._given).__qualname__

    def _received(self) -> str:
        """The class of the callback, which rank 0 alone may know."""
        known = self._call.callback if self._given is None else self._given
        return "a function that makes one" if known is None else type(known).__qualname__


def _take(callback: OnRankZero, numbers: dict[str, float | None]) -> None:
    callback._call.numbers = numbers


rank_zero.meets(OnRankZero, "on_epoch_end", "on_train_end")
rank_zero.carries(OnRankZero, OnRankZero._numbers, _take)
