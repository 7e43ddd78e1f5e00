"""The order in which an elastic `fit` of tf_keras reads arrays and `Sequence`s: rank 0's order.

See `shuffling`, which decides it for Keras 3. Each epoch of arrays has another order, which the
seed decides; all epochs are one dataset. The order of a `Sequence` is a function of the seed and of
the number of the opening.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras

from tfdist._types import Nested
from tfdist.data.openings import BatchSource
from tfdist.data.position import InputPosition
from tfdist.data.seeds import Seed, restored, users_seed
from tfdist.internals.tf_keras import KerasSequenceAdapter, TensorLikeDataAdapter
from tfdist.keras.drawing import note_call
from tfdist.keras.hooks.shuffling import PyDatasetSource, global_seed
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of


def order_of(
    adapter: KerasSequenceAdapter | TensorLikeDataAdapter, dataset_of: Callable[[], tf.data.Dataset]
) -> BatchSource | None:
    """Returns the batches of arrays or of a `Sequence`; `None` of other data.

    Args:
      adapter: tf_keras's adapter of the data, made in an elastic job.
      dataset_of: makes the dataset of the adapter again, after the adapter was made again.
    """
    # Lists of numbers become arrays.
    arrays = getattr(getattr(adapter, "_internal_adapter", adapter), "tfdist_arrays", None)
    if arrays is not None:
        arrays.dataset_of = dataset_of
        return arrays
    return getattr(adapter, "tfdist_source", None)


@hooks(TensorLikeDataAdapter, "__init__")
def shuffle_as_rank_0(original, self, *args, shuffle=False, **kwargs):
    """In elastic training all read arrays in rank 0's order, which newcomers make again."""
    if elastic_job_of(tf.distribute.get_strategy()) is None:
        original(self, *args, shuffle=shuffle, **kwargs)
        return

    def make(seed: Seed | None, first: int) -> None:
        slice_inputs = self.slice_inputs
        # Batches are left out before their rows are read.
        self.slice_inputs = lambda indices, inputs: slice_inputs(indices.skip(first), inputs)
        try:
            with contextlib.nullcontext() if seed is None else global_seed(seed.value):
                original(self, *args, shuffle=shuffle, **kwargs)
        finally:
            del self.slice_inputs

    shuffles_batches = isinstance(shuffle, str)
    self.tfdist_arrays = _ArraySource(make, _seed() if shuffle else None, shuffles_batches)


class _ArraySource:
    """The batches of arrays, of all epochs one after the other.

    Args:
      make: makes tf_keras's adapter of the arrays; takes a seed, and how many batches to leave
        out.
      seed: decides the order; `None` if arrays are not shuffled.
      shuffles_batches: whether the rows of each batch are shuffled when they have been read, so
        that batches can be left out only after that.

    Attributes:
      dataset_of: makes the dataset of the adapter.
    """

    datasets: Sequence[tf.data.Dataset] = ()

    def __init__(
        self, make: Callable[[Seed | None, int], None], seed: Seed | None, shuffles_batches: bool
    ) -> None:
        self.seed = seed
        self.dataset_of: Callable[[], tf.data.Dataset] | None = None
        self._make = make
        self._shuffles_batches = shuffles_batches
        self._made_with = seed
        make(seed, 0)

    def begin_at(
        self, opened: int, opening: int, batches: int, read: int
    ) -> tf.data.Dataset | None:
        """See `tfdist.data.openings.BatchSource`."""
        if not batches and self.seed == self._made_with:
            return None
        assert self.dataset_of is not None
        self._make(self.seed, 0 if self._shuffles_batches else batches)
        dataset = self.dataset_of()
        return dataset.skip(batches) if self._shuffles_batches else dataset

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """See `tfdist.data.openings.BatchSource`."""
        return []

    def restore(self, position: InputPosition) -> list[str]:
        """Takes the seed of a position; returns why the order is another one all the same."""
        self.seed, reasons = restored(self.seed, position)
        return reasons


@hooks(KerasSequenceAdapter, "_handle_multiprocessing")
def order_batches_alike(original, self, x, workers, use_multiprocessing, max_queue_size):
    """In elastic training the order of a `Sequence` is the same on all workers.

    tf_keras takes random numbers of Python, of which a newcomer has taken fewer.
    """
    if elastic_job_of(tf.distribute.get_strategy()) is not None:
        x = self.tfdist_source = _SequenceSource(x, _seed() if self._shuffle_sequence else None)
        self._shuffle_sequence = False
    return original(self, x, workers, use_multiprocessing, max_queue_size)


@hooks(KerasSequenceAdapter, "on_epoch_end")
def count_ends(original, self):
    """Counts the calls of a `Sequence`, which another process can make, too."""
    original(self)
    data = self._keras_sequence
    note_call(data.sequence if isinstance(data, _SequenceSource) else data, "on_epoch_end")


def _seed() -> Seed:
    return users_seed() or Seed(random.SystemRandom().getrandbits(31), True)


class _SequenceSource(PyDatasetSource):
    """The batches of a `Sequence`, in the order of an opening; itself one, for tf_keras's threads.

    Args:
      sequence: the `Sequence`.
      seed: decides the order; `None` if batches are not shuffled.
    """

    def __init__(self, sequence: tf_keras.utils.Sequence, seed: Seed | None) -> None:
        self.sequence = sequence
        super().__init__(_Batches(sequence), seed)

    def __len__(self) -> int:
        count = self.num_batches
        assert count is not None
        return count

    @property
    def reads_ahead(self) -> bool:
        """Whether threads read the batches of an epoch before it opens the data."""
        return False

    @property
    def remembers_epochs(self) -> bool:
        """Whether the ends of epochs change the batches, as far as its class tells."""
        return type(self.sequence).on_epoch_end is not tf_keras.utils.Sequence.on_epoch_end


class _Batches:
    """A `Sequence` under the names of Keras 3's `PyDataset`."""

    def __init__(self, sequence: tf_keras.utils.Sequence) -> None:
        self._sequence = sequence

    @property
    def num_batches(self) -> int:
        return len(self._sequence)

    def __getitem__(self, index: int) -> Nested:
        return self._sequence[index]

    def on_epoch_begin(self) -> None:
        pass

    def on_epoch_end(self) -> None:
        self._sequence.on_epoch_end()
