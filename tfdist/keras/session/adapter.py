"""The differences between Keras 3 and tf_keras that participants need."""

from __future__ import annotations

from typing import Any, Protocol


class Adapter(Protocol):
    """One Keras.

    Attributes:
      backup_type: its `BackupAndRestore`.
      history_type: its `History`.
      checkpoint_type: its `ModelCheckpoint`.
      of_each_worker: callbacks whose attributes are a worker's own.
    """

    backup_type: type
    history_type: type
    checkpoint_type: type
    of_each_worker: tuple[type, ...]

    def positions(self, session: Any) -> Any:
        """Returns the participant that knows the position in the data; `None` without one."""

    def feed_of(self, x: Any) -> Any:
        """Returns the feed of data tasks that `x` of a call reads; `None` if it reads none."""

    def count_own_batches(self, data: Any, extended: Any) -> None:
        """Makes an iterator expect this worker's batches of data that is dealt to several."""

    def forget_batches(self, data: Any) -> None:
        """Makes an iterator of data tasks read until its data ends, without a warning."""

    def known_batches(self, data: Any) -> int | None:
        """Returns how many batches an iterator expects; `None` if it does not know."""

    def expect_batches(self, data: Any, batches: int | None) -> None:
        """Makes an iterator expect a number of batches, or none."""

    def save(self, backup: Any, epoch: int, batch: int | None) -> None:
        """Lets a callback of `backup_type` save.

        Args:
          backup: the callback, which has a directory and the model, and may be new.
          epoch: the epoch to continue with.
          batch: the last batch of it that was trained, from 0; `None` before the first one.
        """

    def save_here(self, backup: Any, positions: Any) -> None:
        """Lets a callback of `backup_type` save where its `fit` stands."""

    def restore(self, backup: Any, positions: Any) -> None:
        """Lets a callback of `backup_type` restore its backup, and `fit` continue from there."""
