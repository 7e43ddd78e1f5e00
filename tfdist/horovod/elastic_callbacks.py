"""Callbacks for `fit` within a function of `tfdist.elastic.run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.keras.callback import Callback

if TYPE_CHECKING:
    from tfdist.elastic.states import ObjectState


class CommitStateCallback(Callback):
    """Commits a state after every few batches, and at the end of each epoch.

    Give it to `fit` after the callbacks that change the state, so that a commit has their values.

    Example:
      model.fit(data, callbacks=[UpdateBatchStateCallback(state), CommitStateCallback(state)])
    """

    def __init__(self, state: ObjectState, batches_per_commit: int = 1) -> None:
        """Makes the callback.

        Args:
          state: has the model.
          batches_per_commit: batches between two commits; as many are done again at most.

        Raises:
          ValueError: `batches_per_commit` is no whole number, 1 or more.
        """
        super().__init__()
        if not isinstance(batches_per_commit, int) or batches_per_commit < 1:
            raise ValueError(
                "tfdist.callbacks.CommitStateCallback: expected batches_per_commit to be a whole "
                f"number, 1 or more, received {batches_per_commit!r}"
            )
        self._state = state
        self._batches_per_commit = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to count batches."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits after the last of `batches_per_commit` batches."""
        self._batches += 1
        if self._batches == self._batches_per_commit:
            self._batches = 0
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._batches = 0
        self._state.commit()


class UpdateBatchStateCallback(Callback):
    """Counts the batches of the epoch that are done, in `state.batch`.

    `fit` that is called again begins with the first batch of its data: give it the rest.

    Example:
      model.fit(data.skip(state.batch), callbacks=[UpdateBatchStateCallback(state)])
    """

    def __init__(self, state: Any) -> None:
        """Makes the callback.

        Args:
          state: has a value `batch`, 0 at the beginning.
        """
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts."""
        self._state.batch += 1

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Begins to count from 0."""
        self._state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Counts the epochs that are done, in `state.epoch`.

    Example:
      model.fit(
          data,
          initial_epoch=state.epoch,
          epochs=90,
          callbacks=[UpdateEpochStateCallback(state)],
      )
    """

    def __init__(self, state: Any) -> None:
        """Makes the callback.

        Args:
          state: has a value `epoch`, 0 at the beginning.
        """
        super().__init__()
        self._state = state

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Counts."""
        self._state.epoch += 1
