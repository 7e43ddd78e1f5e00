"""The position of a `fit` of Keras 3 in its data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from tfdist._types import DistributedData
from tfdist.data.openings import openings_of
from tfdist.data.rows import rows_of
from tfdist.internals.keras_3 import ArrayDataAdapter, GeneratorDataAdapter
from tfdist.keras.session.adapter import Distributor, KerasData
from tfdist.keras.session.positions import Positions
from tfdist.keras.session.session import FitSession
from tfdist.keras.training_state import rows_in
from tfdist.ops.trace import events


class Keras3Positions(Positions):
    """The position of one `fit` of Keras 3, whose iterators are `TFEpochIterator`s."""

    def __init__(self, session: FitSession) -> None:
        super().__init__(session)
        self._step = contextlib.ExitStack()
        """The event of the step that is made."""
        self._is_opened = False
        """Whether the data was opened for this epoch."""

    def begin_call(self) -> None:
        """Another `fit` of the model is not to begin at the epoch at which this one continues."""
        before = self.model._initial_epoch

        def forget() -> None:
            if self.resumed is not None:
                self.model._initial_epoch = before

        self.session.call_at_end(forget)
        # Keras drops the steps of a call that fails: the garbage collector would end the event.
        self.session.enter(self._step)

    def open_data(
        self, data: KerasData, strategy: tf.distribute.Strategy, make: Callable[[Distributor], None]
    ) -> None:
        """Counts the openings of the training data, which `fit` prepares first."""
        is_trained_on = self.session.data is None
        make(strategy)
        if not is_trained_on:
            return
        dataset, adapter = data._distributed_dataset, data.data_adapter
        # Without a strategy, or with one of TensorFlow's, they are not counted yet.
        openings = data.tfdist_openings or openings_of(dataset)
        if hasattr(adapter, "tfdist_source"):
            openings.source = adapter.tfdist_source
            openings.source.spans_epochs = data.steps_per_epoch is not None
        self.read(data, openings)

    def opened(self, dataset: DistributedData) -> Iterable | None:
        """Returns an iterable that opens the training data at its position.

        Args:
          dataset: the dataset that Keras would open; see `open_arrays_once_an_epoch`.
        """
        if dataset is not self.dataset:
            return dataset
        # Keras opens it after the last step, and will open it again for the next epoch.
        is_dropped = self._is_opened and self.session.data.steps_per_epoch is None
        self._is_opened = True
        assert self._openings is not None  # since the data is known
        return () if is_dropped and self._openings.pass_over() else self._openings

    def steps(self, of_keras: Iterator) -> Iterator:
        """The steps of an epoch, from the first step that is to be made.

        Args:
          of_keras: all steps, which begin with the number of their first batch. They do not read.
        """
        session = self.session
        start = self._begin_steps()
        self._is_opened = False
        size = session.data.steps_per_execution
        first = session.batch
        # The batches of earlier epochs that came from the same opening.
        earlier = 0 if start is None else start.position.batches - first
        for step in of_keras:
            session.data._steps_seen += earlier
            earlier = 0
            if step[0] < first:
                continue
            self._begin_step(step[0], size)
            self._step.enter_context(events.span("step", f"epoch {session.epoch}, batch {step[0]}"))
            try:
                yield step
            finally:
                self._step.close()
            session.step_is_done()

    @property
    def dataset(self) -> DistributedData:
        """See `Positions`."""
        return self.session.data._distributed_dataset

    @property
    def rows(self) -> int | None:
        """See `Positions`."""
        adapter = self.session.data.data_adapter
        if not isinstance(adapter, ArrayDataAdapter):
            return rows_of(self.dataset)
        return rows_in(adapter.num_batches, adapter.batch_size, adapter.partial_batch_size)

    def begin_at(self, epoch: int) -> None:
        """See `Positions`."""
        self.model._initial_epoch = epoch

    @property
    def _opens_for_epoch(self) -> bool:
        # Not where steps_per_epoch lets one opening span several epochs.
        data = self.session.data
        return data.steps_per_epoch is None or data._current_iterator is None

    @property
    def _yields_once(self) -> bool:
        return isinstance(self.session.data.data_adapter, GeneratorDataAdapter)
