"""The differences between Keras 3 and tf_keras that participants need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tfdist._types import KerasCallback
from tfdist.data.feed import Feed
from tfdist.data.strategies import WorkerInput

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.internals.keras_3 import TFEpochIterator
    from tfdist.internals.tf_keras import DataHandler


# The data of a call, as it is iterated: of Keras 3, or of tf_keras.
KerasData: TypeAlias = "TFEpochIterator | DataHandler"
# The arguments of a call by name. Participants change the arguments that they know.
Arguments: TypeAlias = dict[str, Any]


class Distributor(Protocol):
    """Distributes the data of a call: a strategy, or what stands for it there."""

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset) -> Iterable:
        """Returns the distributed dataset."""


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

    def feed_of(self, x: object) -> Feed | None:
        """Returns the feed of data tasks that `x` of a call reads; `None` if it reads none."""

    def count_own_batches(self, data: KerasData, extended: WorkerInput) -> None:
        """Makes an iterator expect this worker's batches of data that is dealt to several."""

    def forget_batches(self, data: KerasData) -> None:
        """Makes an iterator of data tasks read until its data ends, without a warning."""

    def reopened_datasets(self, data: KerasData) -> Sequence[object]:
        """Returns the datasets that an iterator opens anew for each epoch."""

    def known_batches(self, data: KerasData) -> int | None:
        """Returns how many batches an iterator expects; `None` if it does not know."""

    def expect_batches(self, data: KerasData, batches: int | None) -> None:
        """Makes an iterator expect a number of batches, or none."""

    def save(self, backup: KerasCallback, epoch: int, batch: int | None) -> None:
        """Lets a callback of `backup_type` save.

        Args:
          backup: the callback, which has a directory and the model, and may be new.
          epoch: the epoch to continue with.
          batch: the last batch of it that was trained, from 0; `None` before the first one.
        """

    def save_here(self, backup: KerasCallback, positions: Any) -> None:
        """Lets a callback of `backup_type` save where its `fit` stands."""

    def restore(self, backup: KerasCallback, positions: Any) -> None:
        """Lets a callback of `backup_type` restore its backup, and `fit` continue from there."""
