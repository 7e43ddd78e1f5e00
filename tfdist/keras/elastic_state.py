"""What a newcomer of an elastic `fit` receives, and how it goes on from there."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.callbacks import BackupAndRestore, History, ProgbarLogger
from keras.src.backend.common import global_state

from tfdist.data.position import InputPosition
from tfdist.elastic.atomic_step import type_of
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.elastic.values import (
    assign_values,
    broadcast_bytes,
    broadcast_values,
    fingerprint,
)
from tfdist.keras import rank_zero
from tfdist.keras.models import (
    metrics_variables,
    model_variables,
    optimizer_variables,
    tf_variable,
)
from tfdist.keras.own_state import OwnState
from tfdist.keras.training import Training, TrainingState

_log = logging.getLogger("tfdist.elastic")
_MAX_DESCRIBED = 1000
_PLAIN = (bool, int, float, type(None))


class ElasticFit:
    """One `fit` of Keras 3 in an elastic job, the `State` of `tfdist.elastic.job`.

    A subclass is one of tf_keras.

    Args:
      job: the members.
      running: where the `fit` stands.
      callbacks: its `CallbackList`.

    Attributes:
      meeting: the callbacks after whose calls the members meet.
    """

    backup_type: type = BackupAndRestore
    # Callbacks whose attributes are a worker's own.
    of_each_worker: tuple[type, ...] = (History, ProgbarLogger)

    def __init__(self, job: ElasticJob, running: Training, callbacks: Any) -> None:
        self._job = job
        self._running = running
        self._callbacks = callbacks
        self.meeting = rank_zero.meeting(callbacks.callbacks)
        self._handles: list[tf.Tensor] = []
        self._has_restored = False

    def begin(self) -> None:
        """Takes the state of rank 0; a newcomer waits for the members, and takes theirs.

        Raises:
          ValueError: the model's `train_function` is not Keras's own.
          Exception: as for `ElasticJob.run`.
        """
        model = self._running.model
        job = self._job
        job.state = self
        data = self._running.dataset
        step = getattr(model.train_function, "elastic_step", None)
        if step is None:
            raise ValueError(
                f"elastic training of {model.name!r}: expected a model that makes its "
                f"train_function as Keras does, received {type(model).__name__}, which makes "
                "another one; train_step is what a model may define"
            )
        # Tracing makes what a step makes on first use, such as slots, and takes its time now.
        concrete = step.trace(data.element_spec)
        self._handles = _handles(model, concrete, step.further_handles())
        # A newcomer that differs is refused; the members go on.
        fit = f"of fit number {job.fits + 1}"
        rows = self._running.rows
        description = {
            f"variables {fit}": _variables_in_words(self._handles),
            f"batches {fit}": _shortened(f"{int(data.cardinality())} of {data.element_spec}"),
            # Each step cuts a batch by ranks, so all have to have the same batches.
            f"rows {fit}": "unknown" if rows is None else str(rows),
            # The members meet after their calls.
            f"callbacks that save {fit}": _shortened(rank_zero.in_words(self.meeting)),
        }
        job.describe(description)
        if job.is_newcomer and job.enter(self):
            return

        def receive() -> tuple[bytes, list[tf.Tensor]]:
            job.check_description(description)
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

    def _restore_backup(self) -> None:
        """Lets `BackupAndRestore` do once, on rank 0, what it does when `fit` begins."""
        if self._has_restored:
            return
        self._has_restored = True
        for callback in self._backups():
            self.restore_from(callback)
        if self._running.resumed is not None:
            # The other members receive the sums of metrics, too.
            self._running.resumed.own.restore(self._running.model, metrics=True)

    def _backups(self) -> list[Any]:
        return [c for c in self._callbacks.callbacks if isinstance(c, self.backup_type)]

    def restore_from(self, backup: Any) -> None:
        """Goes on from the backup of a callback of `backup_type`, if there is one."""
        backup.restores_for_all = True
        backup.on_train_begin()

    def save_to(self, backup: Any) -> None:
        """Lets a callback of `backup_type` save."""
        backup._save_model()

    def why_not_again(self) -> str | None:
        """Why another `fit` of this process cannot read the same batches; `None` if it can."""
        return self._running.why_not_again()

    def handles(self) -> Sequence[tf.Tensor]:
        """See `State`."""
        return self._handles

    def describe(self) -> bytes:
        """See `State`."""
        with self._running.before_step():
            position = self._running.position
        arrays: dict[str, np.ndarray] = {
            "position": np.array(position.to_json()),
            "callbacks": np.array(json.dumps(self._described())),
            "of rank 0": np.array(rank_zero.describe(self._callbacks.callbacks)),
        }
        for i, callback in enumerate(self._callbacks.callbacks):
            for j, value in enumerate(getattr(callback, "best_weights", None) or ()):
                arrays[f"best_{i}_{j}"] = np.asarray(value)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    def restore(self, content: bytes) -> None:
        """See `State`."""
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            position = InputPosition.from_json(str(found["position"]))
            described = json.loads(str(found["callbacks"]))
            best = {name: found[name] for name in found.files if name.startswith("best_")}
            of_rank_0 = str(found["of rank 0"])
        _restore_callbacks(self._callbacks.callbacks, described, best)
        rank_zero.restore(self._callbacks.callbacks, of_rank_0)
        # Keras sets metrics to zero when an epoch begins.
        own = OwnState.of(self._running.model, of_all=False)
        self._running.go_on_from(TrainingState(position, own), beside_others=True)

    def save(self) -> None:
        """See `State`."""
        with self._running.before_step():
            for callback in self._backups():
                self.save_to(callback)

    def _described(self) -> list[dict[str, Any]]:
        """The numbers among the callbacks' attributes, such as the best result, and their types."""
        return [
            {
                "type": type(callback).__qualname__,
                "values": {}
                if isinstance(callback, self.of_each_worker)
                else {
                    name: value.item() if isinstance(value, np.generic) else value
                    for name, value in vars(callback).items()
                    if isinstance(value, (*_PLAIN, np.generic))
                },
            }
            for callback in self._callbacks.callbacks
        ]


def _handles(model: Any, concrete: Any, further: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The resources of all variables that training reads or writes, in a fixed order."""
    of_keras = global_state.get_global_attribute("global_seed_generator")
    known = [
        *model_variables(model),
        *optimizer_variables(model),
        *metrics_variables(model),
        *([] if of_keras is None else [of_keras.state]),
    ]
    found: dict[int, tf.Tensor] = {}
    for value in map(tf_variable, known):
        for part in model.distribute_strategy.experimental_local_results(value):
            found[id(part.handle)] = part.handle
    # Those of optimizers that only a train_step knows, in the order of their creation: that of
    # captures differs between processes.
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


def _variables_in_words(handles: Sequence[tf.Tensor]) -> str:
    shapes = [found[1] for found in map(type_of, handles) if found is not None]
    numbers = sum(shape.num_elements() or 0 for shape in shapes)
    return f"{len(handles)} with {numbers:,} numbers ({fingerprint(handles):x})"


def _shortened(text: str) -> str:
    """Returns a text, or its beginning and its hash: each request of a member has it."""
    if len(text) <= _MAX_DESCRIBED:
        return text
    return f"{text[:_MAX_DESCRIBED]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _restore_callbacks(
    callbacks: Sequence[Any], described: Sequence[dict[str, Any]], best: dict[str, np.ndarray]
) -> None:
    own, theirs = [type(each).__qualname__ for each in callbacks], [d["type"] for d in described]
    if own != theirs:
        _log.warning(
            "expected the members' callbacks, %s, received %s: they begin as new ones. Give the "
            "same callbacks, and the same `verbose`, to all workers",
            theirs,
            own,
        )
        return
    for i, (callback, description) in enumerate(zip(callbacks, described, strict=True)):
        for name, value in description["values"].items():
            if name in vars(callback):
                setattr(callback, name, value)
        weights = [value for name, value in best.items() if name.startswith(f"best_{i}_")]
        if weights:
            callback.best_weights = weights
