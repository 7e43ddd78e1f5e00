"""The order in which `fit` shuffles arrays and `PyDataset`s: the same in all workers.

It is a function of a seed and the number of the opening, so that a `fit` that continues elsewhere
has the same order.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist._types import Nested
from tfdist.data.position import InputPosition
from tfdist.data.seeds import Seed, restored, users_seed
from tfdist.data.strategies import workers_of
from tfdist.internals.keras_3 import ArrayDataAdapter, PyDataset, PyDatasetAdapter
from tfdist.internals.tensorflow import ResourceVariable, context
from tfdist.keras.drawing import note_call
from tfdist.keras.hooks.batch_rows import batch_getter
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of, trains_on_servers

_strategy: contextvars.ContextVar[tf.distribute.Strategy | None]
_strategy = contextvars.ContextVar("strategy", default=None)
_DRAWN = -1  # the seed of a worker that has none


@contextlib.contextmanager
def for_strategy(strategy: tf.distribute.Strategy | None) -> Iterator[None]:
    """Within it adapters of arrays learn which strategy they are made for."""
    before = _strategy.set(strategy)
    try:
        yield
    finally:
        _strategy.reset(before)


@hooks(ArrayDataAdapter, "get_tf_dataset")
def shuffle_alike(original, self):
    """`fit` shuffles arrays in the same order on all workers, each of which takes its share.

    Without a common seed some rows would go to two workers, and others to none. With the chief's
    seed the order is the same as in Keras alone. If the chief has no seed it draws one, and each
    epoch has another order.
    """
    source = ArraySource(_seed_of_fit() if self._shuffle else None)
    self.tfdist_source = source
    if source.seed is not None and source.seed.is_drawn and hasattr(self, "_tf_shuffle"):
        # Keras 3.16 calls no `tf.random.shuffle`, and alone gives each epoch the same order.
        self._tf_shuffle = source.shuffle
    with source.in_order():
        return original(self)


@hooks(PyDatasetAdapter, "get_tf_dataset")
def order_batches_alike(original, self):
    """`fit` shuffles the batches of a `PyDataset` in the same order on all workers.

    Keras takes random numbers of Python, which differ between workers.
    """
    source = PyDatasetSource(self.py_dataset, _seed_of_fit() if self.shuffle else None)
    source.get_batch = batch_getter(self.py_dataset, _strategy.get())
    self.tfdist_source = source
    self.shuffle = False
    if self.enqueuer is not None:
        self.enqueuer.shuffle = False
        self.enqueuer.py_dataset = source
    return original(self)


@hooks(PyDatasetAdapter, "_get_iterator")
def yield_in_order(original, self):
    """The batches of a `PyDataset` come in the order of its opening, from a first batch on."""
    source = getattr(self, "tfdist_source", None)
    if source is None:
        return original(self)
    if self.enqueuer is None:
        return (self._standardize_batch(source.get_batch(i)) for i in source.indices())
    return itertools.islice(original(self), source.num_batches)


def common_seed(strategy: tf.distribute.Strategy | None) -> Seed | None:
    """A seed that all workers share; `None` where there is one worker.

    `None` in elastic training, too: members take rank 0's seed with its position.
    """
    if strategy is not None and elastic_job_of(strategy) is not None:
        return None
    own = users_seed()
    seed = [_DRAWN if own is None else own.value, _drawn()]
    communicator = workers_of(strategy)
    if communicator is not None:
        with tf.device("/device:CPU:0"):
            given, drawn = ops.broadcast(
                tf.constant(seed, tf.int64), communicator, label="the seed of fit"
            ).numpy()
        return Seed(int(drawn), True) if given == _DRAWN else Seed(int(given), False)
    if strategy is None or not trains_on_servers(strategy) or strategy.extended.config.workers == 1:
        return None
    if own is not None:
        return own
    return Seed(strategy.extended.parameters.first_of_all(seed[1]), True)


def _seed_of_fit() -> Seed:
    return common_seed(_strategy.get()) or users_seed() or Seed(_drawn(), True)


def _drawn() -> int:
    return random.SystemRandom().getrandbits(31)


class ArraySource:
    """The batches of Keras's dataset of arrays, which reads its order and its first batch.

    Args:
      seed: decides the order; `None` if arrays are not shuffled.
    """

    datasets: Sequence[tf.data.Dataset] = ()

    def __init__(self, seed: Seed | None) -> None:
        self.seed = seed
        # The dataset reads them when it is opened; a tf.Variable would be the strategy's.
        with tf.device("/device:CPU:0"):
            value = 0 if seed is None else seed.value
            self._seed = ResourceVariable(value, dtype=tf.int64, trainable=False)
            self._opening = ResourceVariable(1, dtype=tf.int64, trainable=False)
            self._first = ResourceVariable(0, dtype=tf.int64, trainable=False)

    def begin_at(self, opened: int, opening: int, batches: int, read: int) -> None:
        """See `tfdist.data.openings.BatchSource`; leaves batches out before their rows are read."""
        self._opening.assign(opening)
        self._first.assign(batches)

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """See `tfdist.data.openings.BatchSource`."""
        return []

    def restore(self, position: InputPosition) -> list[str]:
        """Takes the seed of a position; returns why the order is another one all the same."""
        self.seed, reasons = restored(self.seed, position)
        if self.seed is not None:
            self._seed.assign(self.seed.value)
        return reasons

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Makes a dataset that Keras builds within obey the seed, the opening and the first batch.

        Keras has no parameters for these. It shuffles indices with `tf.random.shuffle`, and zips
        batches of them with the arrays.
        """
        zipped = tf.data.Dataset.zip

        def zip_from_first(datasets):
            indices, *others = datasets
            # The count of a plain `skip` would be fixed now.
            rest = tf.data.Dataset.range(1).flat_map(lambda _: indices.skip(self._first))
            # The variables are not the dataset's to save.
            options = tf.data.Options()
            options.experimental_external_state_policy = (
                tf.data.experimental.ExternalStatePolicy.IGNORE
            )
            return zipped((rest.with_options(options), *others))

        with contextlib.ExitStack() as changes:
            changes.enter_context(_replaced(tf.data.Dataset, "zip", staticmethod(zip_from_first)))
            if self.seed is not None and self.seed.is_drawn:
                changes.enter_context(_replaced(tf.random, "shuffle", self.shuffle))
            elif self.seed is not None:
                changes.enter_context(global_seed(self.seed.value))
            yield

    def shuffle(self, indices: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        """Returns indices in the order of the opening, as `tf.random.shuffle` with a drawn seed."""
        # A seeded `tf.random.shuffle` of a dataset would give each epoch the same order. The first
        # index tells batches apart that are shuffled one by one.
        key = tf.stack([self._seed + 0, (self._opening + 0) * 2**32 + indices[0]])
        return tf.random.experimental.stateless_shuffle(indices, key)


class PyDatasetSource:
    """The batches of a `PyDataset`, in the order of an opening; itself one, for Keras's threads.

    Args:
      data: the `PyDataset`.
      seed: decides the order; `None` if batches are not shuffled.

    Attributes:
      spans_epochs: whether an opening lasts for several epochs.
      get_batch: a function from the index of a batch to the batch.
    """

    datasets: Sequence[tf.data.Dataset] = ()
    spans_epochs = False

    def __init__(self, data: PyDataset, seed: Seed | None) -> None:
        self.seed = seed
        self.get_batch: Callable[[int], Nested] = data.__getitem__
        self._data = data
        self._order: list[int] | None = None
        self.begin_at(0, 1, 0, 0)

    def begin_at(self, opened: int, opening: int, batches: int, read: int) -> None:
        """See `tfdist.data.openings.BatchSource`."""
        self._first = batches
        count = self._data.num_batches
        if count is None:
            return
        order = list(range(count))
        if self.seed is not None:
            random.Random(f"{self.seed.value}/{opening}").shuffle(order)
        self._order = order

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """See `tfdist.data.openings.BatchSource`."""
        if self.reads_ahead and (self.spans_epochs or self._data.num_batches is None):
            return ["a PyDataset with workers > 1 reads ahead of the end of an epoch"]
        return []

    def restore(self, position: InputPosition) -> list[str]:
        """Takes the seed of a position, and tells the `PyDataset` of the epochs before it."""
        self.seed, reasons = restored(self.seed, position)
        for _ in range(position.epochs_ended):
            for name in ("on_epoch_begin", "on_epoch_end"):
                getattr(self._data, name)()
                note_call(self._data, name)
        return reasons

    @property
    def reads_ahead(self) -> bool:
        """Whether Keras's threads read the batches of an epoch before it opens the data."""
        return self._data.workers > 1 or (self._data.workers > 0 and self._data.use_multiprocessing)

    @property
    def remembers_epochs(self) -> bool:
        """Whether the ends of epochs change the batches, as far as its class tells."""
        kind, base = type(self._data), PyDataset
        return (
            kind.on_epoch_end is not base.on_epoch_end
            or kind.on_epoch_begin is not base.on_epoch_begin
        )

    def indices(self) -> Iterator[int]:
        """The batches of the opening, from its first one on."""
        first = self._first
        return itertools.count(first) if self._order is None else iter(self._order[first:])

    @property
    def num_batches(self) -> int | None:
        """How many batches the opening has; `None` if there is no end."""
        return None if self._order is None else len(self._order) - self._first

    def __getitem__(self, index: int) -> Nested:
        at = self._first + index
        return self.get_batch(at if self._order is None else self._order[at])


@contextlib.contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Sets TensorFlow's global seed for the duration of a `with` block."""
    of_context = context.context()
    before = {name: getattr(of_context, name, None) for name in ("_seed", "_rng")}
    of_context._set_global_seed(seed)
    try:
        yield
    finally:
        vars(of_context).update(before)


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
