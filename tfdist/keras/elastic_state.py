"""The state that a newcomer of an elastic `fit` receives, and how it continues from there."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._types import KerasCallback, KerasModel, KerasVariable
from tfdist.compression.states import is_of_each_process
from tfdist.data.position import InputPosition
from tfdist.elastic.atomic_step import read, type_of
from tfdist.elastic.contents import Contents
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.elastic.peers import CallOver
from tfdist.elastic.records import Record
from tfdist.elastic.values import (
    assign_values,
    broadcast_bytes,
    broadcast_values,
    fingerprint,
)
from tfdist.internals.keras_3 import global_state
from tfdist.keras import random_state, rank_zero
from tfdist.keras.callback_state import CallbackStates
from tfdist.keras.elastic_records import check_subject, ends_if_wrong, kept_record, restored
from tfdist.keras.models import (
    metrics_variables,
    model_variables,
    optimizer_variables,
    tf_variable,
)
from tfdist.keras.own_state import OwnState
from tfdist.keras.session.adapter import KerasData
from tfdist.keras.session.positions import Positions
from tfdist.keras.training_state import TrainingState
from tfdist.keras.workers import local_updates_of

_MAX_DESCRIBED = 1000
_RETRY = 0.1  # seconds between two questions for a record


@dataclasses.dataclass(frozen=True)
class _Received:
    """The state that a newcomer's callbacks could change before its first step, but must not.

    Attributes:
      values: of all variables.
      callbacks: the callbacks' states.
      stops: `model.stop_training`.
      random: the states of random generators; see `random_state`.
      of_rank_0: the state of the callbacks that rank 0 alone calls; see `rank_zero`.
      data: values of the arrays that are trained with; see `data_values`.
    """

    values: Sequence[tf.Tensor]
    callbacks: bytes
    stops: bool
    random: bytes
    of_rank_0: str
    data: list[float]


class LeftOut(Exception):
    """A `fit` is left out: the members have ended it, and this process has taken what it has left.

    Attributes:
      history: the logs of its epochs, by name.
      epochs: the numbers of its epochs.
      draws: the objects that drew orders in its data, and how often; see `drawing`.
    """

    def __init__(
        self, history: dict[str, list[float]], epochs: list[int], draws: list[int]
    ) -> None:
        super().__init__()
        self.history = history
        self.epochs = epochs
        self.draws = draws


class ElasticFit:
    """One `fit` in an elastic job, the `TrainedState` of `tfdist.elastic.job`.

    A member describes its state in a step, when its callbacks have begun the epoch and the step:

        member      on_epoch_begin   on_train_batch_begin   step 8: describes its state
        newcomer    on_train_begin: takes the state
                    on_epoch_begin   on_train_batch_begin   takes the state again   step 8

    So the changes that the newcomer's callbacks make in between are undone: a member's callbacks
    have made theirs already.

    Args:
      job: the members.
      positions: where the `fit` stands; its callbacks have begun.

    Attributes:
      meeting: the callbacks after whose calls the members wait for each other.
    """

    def __init__(self, job: ElasticJob, positions: Positions) -> None:
        self._job = job
        self._positions = positions
        self._session = positions.session
        self._callbacks = positions.session.callbacks
        self.meeting = rank_zero.meeting(self._callbacks.callbacks)
        self._handles: list[tf.Tensor] = []
        self._description: dict[str, str] = {}
        self._has_restored = False
        self._callback_states: CallbackStates | None = None
        self._received: _Received | None = None
        self._contents: Contents | None = None
        # Of this fit: a callback may call another one.
        self._values = job.calls.values

    @property
    def model(self) -> KerasModel:
        """The model that is trained."""
        return self._session.model

    def begin(self) -> None:
        """Takes the state of rank 0; a newcomer waits for the members, and takes theirs.

        Raises:
          ValueError: the model's `train_function` is not Keras's own.
          LeftOut: the members have ended this `fit`.
          Exception: as for `ElasticJob.run`.
        """
        model = self._session.model
        job = self._job
        job.state = self
        data = self._positions.dataset
        step = getattr(model.train_function, "elastic_step", None)
        if step is None:
            raise ValueError(
                f"elastic training of {model.name!r}: expected a model that makes its "
                f"train_function as Keras does, received {type(model).__name__}, which makes "
                "another one; a model may define train_step"
            )
        # Tracing makes what a step makes on first use, such as slots, and takes its time now.
        concrete = step.trace(data.element_spec)
        self._handles = _handles(model, concrete, step.further_handles())
        self._contents = self._compared()
        self._callback_states = CallbackStates(
            self._callbacks.callbacks, self._session.keras.of_each_worker, _bytes(self._handles)
        )
        # A newcomer that differs is refused; the members continue.
        fit = f"of fit number {job.calls.fits + 1}"
        rows = self._positions.rows
        description = self._description = {
            f"variables {fit}": _variables_in_words(self._handles),
            f"batches {fit}": _shortened(f"{int(data.cardinality())} of {data.element_spec}"),
            # Each step cuts a batch by ranks, so all have to have the same batches.
            f"rows {fit}": "unknown" if rows is None else str(rows),
            # The members meet after their calls.
            f"callbacks that save {fit}": _shortened(rank_zero.in_words(self.meeting)),
        }
        job.describe(description)
        # A member that has ended a call may stand beside a member that ends it in the next
        # generation.
        here = {**job.calls.described("fit"), **description}
        if job.is_newcomer and self._enter():
            return

        def receive() -> tuple[bytes, list[tf.Tensor]]:
            job.check_description(here, self._values)
            label = "the state of rank 0"
            content = b""
            if job.rank == 0:
                self._restore_backup()
                content = self.describe()
            content = broadcast_bytes(content, job.communicator, 0, label)
            return content, broadcast_values(self._handles, job.communicator, 0, label)

        received = job.run(Unit("the beginning of fit", receive, is_whole=True))
        if received is not None and job.rank != 0:
            content, values = received
            assign_values(self._handles, values)
            self.restore(content)

    def _enter(self) -> bool:
        """Joins the members, as `ElasticJob.enter`, or takes what they have left."""
        while True:
            try:
                return self._job.enter(self)
            except CallOver:
                record = self._job.calls.record()
            if record is not None:
                raise LeftOut(*self._leave_out(record))
            # The member that has ended it may just be leaving.
            self._job.pause(_RETRY)

    def record(
        self, history: dict[str, list[float]], epochs: Sequence[int], draws: Sequence[int]
    ) -> Record:
        """Keeps what this `fit` has left, for processes that leave it out.

        Args:
          history: the logs of its epochs, by name.
          epochs: the numbers of its epochs.
          draws: the objects that drew orders in its data, and how often; see `drawing`.
        """
        values = {
            "history": {name: list(map(float, logs)) for name, logs in history.items()},
            "epochs": list(map(int, epochs)),
            "draws": list(map(int, draws)),
            "state": np.frombuffer(self.describe(), np.uint8),
        }
        return kept_record(
            self._job.records, "fit", self._description, values, self._handles, self._job.calls
        )

    def _leave_out(self, record: Record) -> tuple[dict[str, list[float]], list[int], list[int]]:
        """Takes what another process's `record` has kept; returns what `LeftOut` has."""
        job = self._job
        check_subject(job, record, "fit", self._description)
        if len(record.values) != len(self._handles):
            job.end(
                f"expected the {len(record.values)} variables that the members' fit number "
                f"{job.calls.fits + 1} has trained, received {len(self._handles)}"
            )
        with ends_if_wrong(job, record):
            values = restored(job.records, record, self._handles)
            left = _history_of(values), list(map(int, values["epochs"])), values["draws"]
            self._take(self._received_from(values["state"].tobytes())[1])
        job.calls.end(record)
        return left

    def _restore_backup(self) -> None:
        """Lets `BackupAndRestore` do once, on rank 0, what it does when `fit` begins."""
        if self._has_restored:
            return
        self._has_restored = True
        for callback in self._backups():
            self._session.keras.restore(callback, self._positions)
        if self._positions.resumed is not None:
            # The other members receive the sums of metrics, too.
            self._positions.resumed.own.restore(self._session.model, metrics=True)

    def _backups(self) -> list[KerasCallback]:
        kind = self._session.keras.backup_type
        return [callback for callback in self._callbacks.callbacks if isinstance(callback, kind)]

    def why_not_again(self) -> str | None:
        """Why another `fit` of this process cannot read the same batches; `None` if it can."""
        return self._positions.why_not_again()

    def handles(self) -> Sequence[tf.Tensor]:
        """See `TrainedState`."""
        return self._handles

    def describe(self) -> bytes:
        """See `TrainedState`."""
        with self._positions.before_step():
            position = self._positions.position
        assert self._callback_states is not None
        arrays: dict[str, np.ndarray] = {
            "position": np.array(position.to_json()),
            "callbacks": np.frombuffer(self._callback_states.describe(), np.uint8),
            "random": np.frombuffer(random_state.packed(), np.uint8),
            "stops": np.array(bool(self._session.model.stop_training)),
            "is_in_step": np.array(self._session.in_step > 0),
            "values": np.array(self._values, np.float64),
            "of rank 0": np.array(rank_zero.describe(self._callbacks.callbacks)),
        }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    def restore(self, content: bytes) -> None:
        """See `TrainedState`."""
        position, received, is_in_step = self._received_from(content)
        self._job.check_values(self._values, received.data, "the other members")
        self._take(received)
        # Keras sets metrics to zero when an epoch begins.
        own = OwnState.of(self._session.model, of_all=False)
        self._positions.go_on_from(TrainingState(position, own), beside_others=True)
        self._received = received if is_in_step else None
        if self._contents is not None:
            self._contents.note_joining()

    def _received_from(self, content: bytes) -> tuple[InputPosition, _Received, bool]:
        """Reads what `describe` has returned; the variables have their values already.

        Returns:
          The position, what else there is, and whether it was described within a step.
        """
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            received = _Received(
                [read(handle) for handle in self._handles],
                found["callbacks"].tobytes(),
                bool(found["stops"]),
                found["random"].tobytes(),
                str(found["of rank 0"]),
                found["values"].tolist(),
            )
            position = InputPosition.from_json(str(found["position"]))
            return position, received, bool(found["is_in_step"])

    @property
    def is_catching_up(self) -> bool:
        """Whether this newcomer has the state of a step that its callbacks have not begun yet."""
        return self._received is not None

    def take_again(self) -> None:
        """Takes the state again that this newcomer has received, right before its first step."""
        if self._received is not None:
            received, self._received = self._received, None
            self._take(received)

    @property
    def has_contents(self) -> bool:
        """Whether members compare their variables at all; they do not if workers train alone."""
        return self._contents is not None

    def compares(self, data: KerasData) -> bool:
        """Whether members compare their variables after an epoch's steps.

        Args:
          data: Keras's iterator of the steps; the iterator of a validation does not train.
        """
        return self.has_contents and self._session.data is data

    def compare(self, always: bool = False) -> None:
        """Compares the contents of the members' variables; see `Contents.compare`.

        Args:
          always: whether to do so in any case, as after the last epoch.
        """
        if self._contents is not None:
            is_last = self._session.epoch + 1 >= self._callbacks.params["epochs"]
            stops = bool(self._session.model.stop_training)
            self._contents.compare(always or is_last or stops)

    def _compared(self) -> Contents | None:
        """The variables that are equal on all members; `None` if workers train alone."""
        model = self._session.model
        if local_updates_of(model.distribute_strategy) is not None:
            return None
        handles = [handle for handle in self._handles if not is_of_each_process(handle)]
        names = {}
        for variable in _known(model):
            for part in _parts(model, variable):
                names[id(part.handle)] = getattr(variable, "path", None) or variable.name
        return Contents(
            self._job, handles, [names.get(id(handle), "one of train_step") for handle in handles]
        )

    def _take(self, received: _Received) -> None:
        assert self._callback_states is not None
        assign_values(self._handles, received.values)
        self._callback_states.restore(received.callbacks)
        self._session.model.stop_training = received.stops
        random_state.restore(received.random)
        rank_zero.restore(self._callbacks.callbacks, received.of_rank_0)

    def save(self) -> None:
        """See `TrainedState`."""
        with self._positions.before_step():
            for callback in self._backups():
                self._session.keras.save_here(callback, self._positions)


def state_of_newcomer(job: ElasticJob) -> ElasticFit | None:
    """The `fit` of this process if it has joined the others, and has not made a step with them."""
    state = job.state
    return state if isinstance(state, ElasticFit) and state.is_catching_up else None


def _handles(
    model: KerasModel,
    concrete: tf.types.experimental.ConcreteFunction,
    further: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """The resources of all variables that training reads or writes, in a fixed order."""
    found: dict[int, tf.Tensor] = {}
    for variable in _known(model):
        for part in _parts(model, variable):
            found[id(part.handle)] = part.handle
    # Scalars of optimizers that only a train_step knows, in the order of their creation: the order
    # of captures differs between processes.
    captured = [
        handle
        for handle in concrete.captured_inputs
        if handle.dtype == tf.resource and type_of(handle) is not None
    ]
    for handle in sorted(captured, key=lambda handle: handle._id):
        if not model.train_function.elastic_step.is_private(handle):
            found[id(handle)] = handle
    found |= {id(handle): handle for handle in further}
    return list(found.values())


def _known(model: KerasModel) -> list[KerasVariable]:
    of_keras = global_state.get_global_attribute("global_seed_generator")
    return [
        *model_variables(model),
        *optimizer_variables(model),
        *metrics_variables(model),
        *([] if of_keras is None else [of_keras.state]),
    ]


def _parts(model: KerasModel, variable: KerasVariable) -> Sequence[tf.Variable]:
    """A variable's copies on the devices of this process."""
    return model.distribute_strategy.experimental_local_results(tf_variable(variable))


def _bytes(handles: Sequence[tf.Tensor]) -> int:
    kinds = filter(None, map(type_of, handles))
    return sum(dtype.size * (shape.num_elements() or 0) for dtype, shape in kinds)


def _variables_in_words(handles: Sequence[tf.Tensor]) -> str:
    shapes = [found[1] for found in map(type_of, handles) if found is not None]
    numbers = sum(shape.num_elements() or 0 for shape in shapes)
    return f"{len(handles)} with {numbers:,} numbers ({fingerprint(handles):x})"


def _shortened(text: str) -> str:
    """Returns a text, or its beginning and its hash: each request of a member has it."""
    if len(text) <= _MAX_DESCRIBED:
        return text
    return f"{text[:_MAX_DESCRIBED]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _history_of(values: dict[str, Any]) -> dict[str, list[float]]:
    """The logs of a `fit` that other members have made."""
    return {str(name): list(map(float, logs)) for name, logs in values["history"].items()}
