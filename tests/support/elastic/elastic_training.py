"""One worker of an elastic `fit` that suffers faults, and the same `fit` of one plain process.

The `fit` is Keras 3's or tf_keras's.

The workers pause at the ends of epochs, until the test permits more of them: so a script of faults
says in which epoch each fault comes, and faults do not pile up on a slow machine. A fault from
inside is exact: a process kills itself at a named place of its training.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from support import ledger
from support.training import embeddings

ROWS, BATCH, COLUMNS = 83, 16, 6  # the last of six batches has fewer rows than there are workers
STEPS = -(-ROWS // BATCH)
SEARCH = 3 + 3 * 4 * 2  # steps: warm-up, then three rounds of four with each of two sizes
VALIDATION_ROWS, VALIDATION_STEPS = 20, 2
SAVE_EVERY = 4  # steps
# Seconds that a worker waits for the test.
PATIENCE = 300.0
SIGNALS = {
    "kill": signal.SIGKILL,
    "kill with servers": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "leave": signal.SIGTERM,
}


@dataclasses.dataclass(frozen=True)
class Fit:
    """A `fit`.

    Args:
      model: "dense", "normalized" or, of Keras 3, "ledger"; with servers "tables" or "ledger of
        tables", too.
      data: "dataset", "arrays", or "mapped", a dataset of which members map their own rows.
      dtype: of weights and data.
      validates: whether each epoch ends with a validation.
      saves: whether there are a BackupAndRestore and a ModelCheckpoint.
      is_quick: whether silent processes are given up after 3 seconds, not after 10.
      library: "keras" or "tf_keras".
      servers: parameter servers, for tables.
      clips: whether the optimizer clips the gradients of tables.
      searches: whether the workers try sizes of buckets, for `SEARCH` steps.
    """

    model: str = "dense"
    data: str = "dataset"
    dtype: str = "float64"
    validates: bool = False
    saves: bool = False
    is_quick: bool = False
    library: str = "keras"
    servers: int = 0
    clips: bool = False
    searches: bool = False

    @property
    def keras(self) -> Any:
        """The module of the library."""
        return importlib.import_module(self.library)

    def units(self, epochs: int) -> int:
        """The units of work of a `fit`: its beginning and end, steps, ends of epochs, and saves."""
        saves = (epochs + epochs * STEPS // SAVE_EVERY) * self.saves
        return 2 + epochs * (STEPS + 1 + (VALIDATION_STEPS + 1) * self.validates) + saves


@dataclasses.dataclass(frozen=True)
class SelfFault:
    """A fault from inside.

    Args:
      kind: "kill", "kill with servers" (all of them, at once), "stop" or "leave".
      place: where, such as "batch end".
      epoch: from 0, or `None` for any.
      batch: of the epoch, from 0, or `None` for any.
    """

    kind: str
    place: str
    epoch: int | None = None
    batch: int | None = None


@dataclasses.dataclass(frozen=True)
class Go:
    """The message of the test to a worker.

    Args:
      epochs: how many it may train.
      faults: the faults that are to come from inside.
      ends: whether `fit` ends at once.
    """

    epochs: int
    faults: tuple[SelfFault, ...] = ()
    ends: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """The values of a worker at the end.

    Attributes:
      weights: the model's.
      slots: the optimizer's variables.
      logs: of each epoch that this process has seen, by number.
      units: the units of work that the job has done.
      recoveries: how often this process has formed a new generation after a failure.
      traces: how often it has traced its step of training.
    """

    weights: list[np.ndarray]
    slots: list[np.ndarray]
    logs: dict[int, dict[str, float]]
    units: int = 0
    recoveries: int = 0
    traces: int = 1


def _rows(fit: Fit, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, COLUMNS))
    targets = np.sin(features @ np.arange(1.0, COLUMNS + 1))[:, None]
    return features.astype(fit.dtype), targets.astype(fit.dtype)


def _data(fit: Fit) -> dict[str, Any]:
    """The arguments of `fit` for its data."""
    if fit.model.startswith("ledger"):
        records = np.arange(ROWS)
        arrays = records, records
    elif fit.model == "tables":
        arrays = embeddings.examples(ROWS)
    else:
        arrays = _rows(fit, ROWS, seed=7)
    if fit.data == "arrays":
        data: dict[str, Any] = {"x": arrays[0], "y": arrays[1], "batch_size": BATCH}
    else:
        rows = tf.data.Dataset.from_tensor_slices(arrays).shuffle(ROWS, seed=5)
        if fit.data == "mapped":
            rows = rows.map(lambda x, y: (x * 0.5, y))
        data = {"x": rows.batch(BATCH)}
    if fit.validates:
        data["validation_data"] = (
            embeddings.examples(VALIDATION_ROWS)
            if fit.model == "tables"
            else _rows(fit, VALIDATION_ROWS, seed=8)
        )
        data["validation_batch_size"] = BATCH
    return data


def _model(fit: Fit) -> Any:
    keras = fit.keras
    keras.utils.set_random_seed(1)
    if fit.model == "ledger":
        return ledger.model(ROWS)
    if fit.model == "ledger of tables":
        return ledger.model_with_rows(ROWS) if fit.servers else ledger.model_of_two(ROWS)
    if fit.model == "tables":
        embedding = embeddings.remote_embedding("sgd") if fit.servers else None
        optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.05 if fit.clips else None)
        return embeddings.model_with(embedding or embeddings.dense_embedding(), optimizer)
    layers = keras.layers
    middle = [layers.BatchNormalization(synchronized=True)] if fit.model == "normalized" else []
    penalty = keras.regularizers.L2(1e-3)
    model = keras.Sequential(
        [
            keras.Input((COLUMNS,)),
            layers.Dense(8, activation="tanh", kernel_regularizer=penalty),
            *middle,
            layers.Dense(1),
        ]
    )
    # A rate that stays makes small batches magnify rounding without end.
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 50, 0.8)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _callback(fit: Fit, kind: type, *args: Any) -> Any:
    """Returns a callback of the library of a `fit`, of one of the classes below."""
    return type(kind.__name__, (kind, fit.keras.callbacks.Callback), {})(*args)


class _Logs:
    """Notes the logs of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.of_epoch: dict[int, dict[str, float]] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.of_epoch[epoch] = {name: float(value) for name, value in logs.items()}


class _Epochs:
    """Notes the weights at the end of each epoch."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[list[np.ndarray], list[np.ndarray]]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.ends.append(_values(self.model))


def _values(model: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    slots = [variable.numpy() for variable in model.optimizer.variables]
    weights = []
    for layer in model.layers:
        if isinstance(layer, tfdist.layers.Embedding):
            ids = ROWS if layer.output_dim == 1 else embeddings.IDS
            weights.append(embeddings.rows_of(layer, range(ids)))
        else:
            weights += layer.get_weights()
    return weights, slots


def train_alone(ctx: Any, fit: Fit, epochs: int) -> list[Result]:
    """Trains in one process without a strategy; returns the result of each epoch."""
    fit.keras.backend.set_floatx(fit.dtype)
    model = _model(fit)
    logs, ends = _callback(fit, _Logs), _callback(fit, _Epochs)
    model.fit(**_data(fit), epochs=epochs, verbose=0, callbacks=[logs, ends])
    return [Result(weights, slots, logs.of_epoch) for weights, slots in ends.ends]


class SelfFaults:
    """The faults of one worker that come from inside.

    Args:
      ctx: the worker's context.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self._waiting: list[SelfFault] = []
        # Where the training is.
        self.epoch = self.batch = 0

    def add(self, faults: tuple[SelfFault, ...]) -> None:
        """Prepares faults."""
        self._waiting += faults

    def at(self, place: str, epoch: int | None = None, batch: int | None = None) -> None:
        """Suffers the faults of a place."""
        for fault in list(self._waiting):
            if (
                fault.place == place
                and fault.epoch in (None, epoch)
                and fault.batch in (None, batch)
            ):
                self._waiting.remove(fault)
                self._ctx.report("fault", (fault, time.monotonic()))
                if fault.kind == "kill with servers":
                    for path in self._ctx.tmp_path.glob("server *"):
                        os.kill(int(path.read_text()), signal.SIGKILL)
                os.kill(os.getpid(), SIGNALS[fault.kind])

    def around(self, owner: Any, name: str, before: str = "", after: str = "") -> None:
        """Makes a function of an object or a class a place of faults."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def with_faults(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.at(before)
            result = original(*args, **kwargs)
            if after:
                self.at(after)
            return result

        setattr(owner, name, with_faults)


class _Places:
    """The places of faults in a `fit`, and its pauses."""

    model: Any

    def __init__(self, ctx: Any, faults: SelfFaults, permitted: Go) -> None:
        super().__init__()
        self._ctx = ctx
        self._faults = faults
        self._permitted = permitted
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._faults.at("fit begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._faults.at("epoch begin", epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._faults.epoch, self._faults.batch = self._epoch, batch
        self._faults.at("batch begin", self._epoch, batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._faults.at("batch end", self._epoch, batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._faults.at("validation begin", self._epoch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._faults.at("validation", self._epoch, batch)

    def on_test_end(self, logs: Any = None) -> None:
        self._faults.at("validation end", self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._faults.at("epoch end", epoch)
        while epoch + 1 >= self._permitted.epochs and not self._permitted.ends:
            self._ctx.report("pauses after", epoch + 1)
            self._permitted = self._ctx.wait_for("go", PATIENCE)
            self._faults.add(self._permitted.faults)
        if self._permitted.ends and epoch + 1 >= self._permitted.epochs:
            self.model.stop_training = True


class _Worlds(logging.Handler):
    """Reports each generation that this worker has entered, as its log has it."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(logging.INFO)
        self._ctx = ctx
        self.job: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        if "rank %d of %d (before" in record.msg:
            _, rank, size, before, generation, units, seconds = record.args
            self._ctx.report(
                "world",
                {
                    "generation": generation,
                    "rank": rank,
                    "size": size,
                    "before": before,
                    "units": units,
                    "seconds": seconds,
                    "recoveries": getattr(self.job, "recoveries", 0),
                    "time": time.monotonic(),
                },
            )


def train(ctx: Any, fit: Fit) -> Result:
    """Trains as a worker of an elastic job."""
    from tfdist.elastic import job, membership
    from tfdist.keras import elastic_state
    from tfdist.keras.hooks import shuffling

    of_servers: dict[str, Any] = {}
    if fit.servers and fit.saves:
        of_servers = {"checkpoint_dir": str(ctx.tmp_path / "rows"), "checkpoint_every": 0.5}
    if ctx.rank >= ctx.size - fit.servers:
        (ctx.tmp_path / f"server {ctx.rank}").write_text(str(os.getpid()))
        tfdist.MultiWorkerMirroredStrategy(**of_servers)  # serves
    go = ctx.wait_for("go", PATIENCE)
    faults = SelfFaults(ctx)
    faults.add(go.faults)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    worlds = _Worlds(ctx)
    logging.getLogger("tfdist.elastic").addHandler(worlds)
    if fit.is_quick:
        give_up_early(membership)
    _report_before(ctx, membership.Membership)
    faults.around(membership.Membership, "form", before="forming", after="formed")
    faults.around(elastic_state.ElasticFit, "describe", before="sending")
    faults.around(elastic_state.ElasticFit, "restore", before="receiving")
    faults.around(job.ElasticJob, "_agree", after="agreed")
    faults.around(shuffling, "common_seed", before="seeding")
    if fit.servers:
        _note_commits(faults)
    _note_job(worlds, job.ElasticJob)

    keras = fit.keras
    keras.backend.set_floatx(fit.dtype)
    options = _searching(ctx) if fit.searches else None
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options, **of_servers)
    with strategy.scope():
        model = _model(fit)
    logs = _callback(fit, _Logs)
    callbacks: list[Any] = [logs]
    if fit.saves:
        faults.around(model, "save_weights", after="checkpoint")
        callbacks += [
            keras.callbacks.BackupAndRestore(str(ctx.tmp_path / "backup"), save_freq=SAVE_EVERY),
            keras.callbacks.ModelCheckpoint(
                str(ctx.tmp_path / "best.weights.h5"), save_weights_only=True
            ),
        ]
    callbacks.append(_callback(fit, _Places, ctx, faults, go))
    model.fit(**_data(fit), epochs=10_000, verbose=0, callbacks=callbacks)
    elastic = strategy.extended.elastic_job
    functions = model.train_function.elastic_step._functions.values()
    return Result(
        *_values(model),
        logs.of_epoch,
        units=elastic.units,
        recoveries=elastic.recoveries,
        traces=sum(function.experimental_get_tracing_count() for function in functions),
    )


def _searching(ctx: Any) -> tfdist.CommunicationOptions:
    """Returns options that try two sizes, of bytes instead of megabytes; reports each choice."""
    from tfdist.ops.collectives import tuned_buckets

    tuned_buckets.SIZES = {"1 MB": 64, "4 MB": 256}
    tuned_buckets._BLOCK_BYTES = 64
    tuned_buckets._TAIL_BYTES = 0
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: ctx.report("chosen", record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist.communication").addHandler(handler)
    return tfdist.CommunicationOptions(bytes_per_pack="auto")


def give_up_early(membership: Any) -> None:
    """Gives up silent processes after 3 seconds, not after 10."""
    timing = membership.Timing(answer=2.0, grace=3.0, probe=0.3)
    begin: Callable[..., None] = membership.Membership.__init__
    watch: Callable[..., None] = membership.Membership.watch

    def quick_begin(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options, timing=timing)

    def quick_watch(self: Any, communicator: Any) -> None:
        watch(self, communicator, stalled=1.0, silence=3.0)

    membership.Membership.__init__ = quick_begin
    membership.Membership.watch = quick_watch


def _note_commits(faults: SelfFaults) -> None:
    """Makes places of faults before and behind the gate of a step with tables."""
    from tfdist.keras import elastic_steps
    from tfdist.strategies._variables.elastic_tables import ElasticTables

    pushes: Callable[[], list[tf.Operation]] = elastic_steps._pushes
    commit: Callable[[Any], None] = ElasticTables.commit

    def place(name: str) -> tf.Operation:
        def suffer() -> None:
            faults.at(name, faults.epoch, faults.batch)

        return tf.numpy_function(suffer, [], [])

    def pushed() -> list[tf.Operation]:
        with tf.control_dependencies(pushes()):
            return [place("pushed")]

    def committed(self: Any) -> None:
        with tf.control_dependencies([place("committing")]):
            commit(self)

    elastic_steps._pushes = pushed
    ElasticTables.commit = committed  # type: ignore[method-assign]


def _note_job(worlds: _Worlds, elastic: type) -> None:
    agree: Callable[..., Any] = elastic._agree  # type: ignore[attr-defined]

    def noted(self: Any, *args: Any) -> Any:
        worlds.job = self
        return agree(self, *args)

    elastic._agree = noted  # type: ignore[attr-defined]


def _report_before(ctx: Any, membership: type) -> None:
    """Reports that a worker is ready to join, before it does."""
    form: Callable[..., Any] = membership.form  # type: ignore[attr-defined]

    def reported(self: Any, *args: Any, **kwargs: Any) -> Any:
        ctx.report("forms", time.monotonic())
        return form(self, *args, **kwargs)

    membership.form = reported  # type: ignore[attr-defined]
