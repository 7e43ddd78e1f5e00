"""`fit`, `evaluate` and `predict` with `tfdist.data`: each step commits its records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdist._types import KerasModel
from tfdist.data.feed import Feed
from tfdist.keras.callback import Callback
from tfdist.keras.session.adapter import KerasData
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import Session
from tfdist.keras.workers import communicator_of

_STEPS = {"fit": "train", "evaluate": "test", "predict": "predict"}


class DataTasks(Participant[Session]):
    """Commits the records of each step; `fit` continues with the epoch that the job is in."""

    def __init__(self, session: Session, feed: Feed) -> None:
        super().__init__(session)
        self._feed = feed

    @classmethod
    def of(cls, session: Session) -> DataTasks | None:
        """Returns the participant, if it takes part."""
        feed = session.keras.feed_of(session.arguments.get("x"))
        return None if feed is None else cls(session, feed)

    def begin_call(self) -> None:
        """Runs a callback before the user's, which may save."""
        arguments = self.session.arguments
        if self.session.kind == "fit":
            over = self._feed.begin_fit(arguments["epochs"])
            arguments["initial_epoch"] = arguments["initial_epoch"] or over
        commit = _Commit(self._feed, self.session.model, _STEPS[self.session.kind])
        self.session.add_callback(commit, first=True)

    def around_steps(
        self, steps: contextlib.AbstractContextManager[None], data: KerasData
    ) -> contextlib.AbstractContextManager[None]:
        """An epoch of data tasks has as many batches as its worker has taken.

        Keras ends all epochs of an unknown length after the number of batches of the first one, and
        warns of the end of data.
        """
        return self._of_any_length(steps, data)

    @contextlib.contextmanager
    def _of_any_length(
        self, steps: contextlib.AbstractContextManager[None], data: KerasData
    ) -> Iterator[None]:
        self.session.keras.forget_batches(data)
        with steps:
            yield

    def end_call(self) -> None:
        """Gives back what was not trained."""
        self._feed.end_iteration()


class _Commit(Callback):
    """Commits the records of each step; runs before the user's callbacks, which may save.

    Args:
      feed: of the data.
      model: the model.
      what: "train", "test" or "predict": validation data within `fit` has a queue of its own.
    """

    def __init__(self, feed: Feed, model: KerasModel, what: str) -> None:
        super().__init__()
        self._feed = feed
        self._what = what
        self._batches = model.steps_per_execution
        if communicator_of(model) is not None:  # each device takes batches of its own
            self._batches *= len(model.distribute_strategy.extended.worker_devices)

    def _implements_test_batch_hooks(self) -> bool:
        return True

    def _implements_predict_batch_hooks(self) -> bool:
        return True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """The pushes of the next steps commit, where they can."""
        if self._what == "train":
            self._feed.begin_steps(self._batches)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._commit("train")

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._commit("test")

    def on_predict_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._commit("predict")

    def _commit(self, what: str) -> None:
        if what == self._what:
            self._feed.train(self._batches)
