"""A job that trains a ledger on data tasks, in tests that kill its processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import tfdist
from support import ledger
from support.ps_job import served
from tfdist.config.cluster import Cluster
from tfdist.control.client import UnreachableError
from tfdist.data.queue import messages
from tfdist.job import process
from tfdist.observe import observer
from tfdist.strategies._variables.placement import Placement

RECORDS, TASK, BATCH = 60, 8, 4
ALL_HAVE_TRAINED = "all have trained"  # a file


def keep_company(ctx: Any, model: keras.Model, record: int) -> None:
    """Continues with steps of its own until all workers have trained their tasks.

    In a synchronous job the others' last steps need this worker's gradients: the servers enlarge
    the gradients of a step that lacks one.

    Args:
      ctx: the rank's context.
      model: the ledger.
      record: has a counter that no test looks at.
    """
    data = ledger.batches(tf.data.Dataset.from_tensors(tf.constant(record, tf.int64)), 1)
    while not (ctx.tmp_path / ALL_HAVE_TRAINED).exists():
        model.fit(data, verbose=0)


class Pause(keras.callbacks.Callback):
    """Pauses at the end of the batch with some numbers, until the test sends "continue".

    Args:
      ctx: the rank's context.
      after: the batches, counted over all epochs of this process from 1.
      slowness: additional seconds for each batch.
    """

    def __init__(self, ctx: Any, after: Sequence[int], slowness: float = 0.0) -> None:
        super().__init__()
        self._ctx = ctx
        self._after = after
        self._slowness = slowness
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.batches += 1
        time.sleep(self._slowness)
        if self.batches in self._after:
            self._ctx.report("paused", self.batches)
            self._ctx.wait_for("continue", timeout=240)


def train_async(
    ctx: Any,
    epochs: int,
    pauses: Sequence[Sequence[int]],
    *,
    slowness: float = 0.0,
    poison: int | None = None,
    lease: float = 2.0,
    explicit: bool = True,
    with_rows: bool = False,
    read_ahead: Sequence[int] = (),
    **options: Any,
) -> dict[str, Any] | None:
    """Fits the ledger with parameter servers; serves in a `ps` task.

    Args:
      ctx: the rank's context.
      epochs: of `fit`, and with `explicit` of the queue.
      pauses: as for `Pause`, by rank.
      slowness: as for `Pause`.
      poison: the number of a record that no worker can read.
      lease: of the queue.
      explicit: whether the queue has a last epoch, too.
      with_rows: whether the ledger is kept in a table, too.
      read_ahead: by rank, batches that are read before they are trained. Ranks but the chief then
        wait until the test sends "begin".
      **options: of the strategy.

    Returns:
      "counts", as this worker sees them at its end, and "rows", the table's; "epochs" and
      "batches" of its `fit`.
    """
    if "checkpoint_dir" in options:
        tfdist.init(checkpoint_dir=options["checkpoint_dir"])
    elif served():
        return None
    strategy = tfdist.ParameterServerStrategy(**{"epoch_timeout": 0.0, **options})
    with strategy.scope():
        model = ledger.model_with_rows(RECORDS) if with_rows else ledger.model(RECORDS + 1)
    model.get_weights()
    data = tfdist.data.from_ranges(
        RECORDS, TASK, shuffle=True, seed=1, lease=lease, epochs=epochs if explicit else None
    )
    if poison is not None:

        def check(record):
            tf.debugging.Assert(record != poison, [f"record {poison} cannot be read"])
            return record

        data = data.map(check)
    ctx.report("process", getattr(process.current.ps_worker, "identity", None))
    pause = Pause(ctx, pauses[ctx.rank], slowness)
    batches = ledger.batches(data, BATCH)
    if read_ahead:
        batches = batches.prefetch(read_ahead[ctx.rank])
        if ctx.rank:
            ctx.wait_for("begin", timeout=60)
    try:
        fitted = model.fit(batches, epochs=epochs, verbose=0, callbacks=[pause])
    except tf.errors.InvalidArgumentError:
        # The effect of the end of a script that fails.
        process.current._script.has_failed = True
        process.current.disconnect()
        os._exit(1)
    tfdist.data.feed.current.report()
    ctx.report("trained")
    if options.get("mode") == "sync":
        keep_company(ctx, model, RECORDS)
    ctx.wait_for("end", timeout=240)
    return {
        "counts": ledger.counts(model, RECORDS),
        "rows": ledger.counts_of_rows(model) if with_rows else None,
        "epochs": fitted.epoch,
        "batches": pause.batches,
    }


LEDGER_RECORDS = 120


class _Begin(keras.callbacks.Callback):
    """Reports the first batch; is slow until the test says that there are no more faults."""

    def __init__(self, ctx: Any) -> None:
        super().__init__()
        self._ctx = ctx
        self._has_begun = self._is_fast = False

    def on_train_batch_end(self, batch, logs=None) -> None:
        if not self._has_begun:
            self._ctx.report("begun")
        self._has_begun = True
        self._is_fast = self._is_fast or (self._ctx.tmp_path / "no more faults").exists()
        time.sleep(0.0 if self._is_fast else 0.05)


def keep_ledger(ctx: Any, epochs: int, lease: float, folder: str, mode: str) -> dict[str, Any]:
    """Fits the ledger with parameter servers that write snapshots; serves in a `ps` task.

    Args:
      ctx: the rank's context.
      epochs: of the queue.
      lease: of the queue.
      folder: of the snapshots.
      mode: of the strategy.

    Returns:
      "counts", as this worker sees them at its end; "is_home", by record: whether ps 0 has its
      counter; "differences": the sum of the others' differences from `epochs`.
    """
    if Cluster.from_environment().task_type == "ps":
        ctx.report("serving")
    tfdist.init(checkpoint_dir=folder)
    strategy = tfdist.ParameterServerStrategy(
        mode=mode,
        epoch_timeout=0.0,
        # A "sync" step that drops a worker weighs its records more; a slow restart drops none.
        worker_timeout=600.0,
        checkpoint_dir=folder,
        checkpoint_every=3.0,
        max_shard_bytes=32,
    )
    with strategy.scope():
        model = ledger.model(LEDGER_RECORDS + 1)
    data = tfdist.data.from_ranges(
        LEDGER_RECORDS, TASK, shuffle=True, seed=1, lease=lease, epochs=epochs
    )
    callbacks = [_Begin(ctx)]
    model.fit(ledger.batches(data, BATCH), epochs=epochs, verbose=0, callbacks=callbacks)
    tfdist.data.feed.current.report()
    ctx.report("begun")  # a worker that has come back to nothing
    ctx.report("trained")
    if mode == "sync":
        keep_company(ctx, model, LEDGER_RECORDS)
    ctx.wait_for("end", timeout=240)
    counts, is_home = ledger.counts(model, LEDGER_RECORDS), []
    parameters = strategy.extended.parameters
    parameter = parameters[model.trainable_variables[0].value.parameter]
    placement = Placement(servers=2, max_shard_bytes=32)
    for shard in placement.shards(parameter.placed_as, parameter.shape, 4):
        is_home += [shard.server == 0] * shard.count
    is_home = is_home[:LEDGER_RECORDS]
    others = [count for count, own in zip(counts, is_home, strict=True) if not own]
    return {
        "counts": counts,
        "is_home": is_home,
        "differences": sum(abs(count - epochs) for count in others),
    }


def wait_for_tasks(
    ranks: Any, server: int, condition: Callable[[dict[str, Any]], bool], what: str
) -> None:
    """Waits for a state of the only queue; leases that are due expire meanwhile.

    Args:
      ranks: the processes.
      server: the rank of ps 0.
      condition: of ps 0's report of the queue.
      what: the condition in words.
    """
    address = ranks[server].assignment.addresses[server]
    request = messages.TaskStatusRequest(2.0)
    deadline = time.monotonic() + 60
    with contextlib.closing(
        observer.Observer("a test").client(observer.Access(), address, "ps 0")
    ) as control:
        while True:
            answer = {}
            with contextlib.suppress(UnreachableError):  # while ps 0 starts again
                answer = control.call(messages.TASK_STATUS, request, 2.0, patient=True)
            # A ps 0 that has just started knows the names of queues before it has their counts.
            counted = [queue for queue in answer.get("queues", ()) if "counted_by" not in queue]
            if counted and condition(counted[0]):
                return
            assert time.monotonic() < deadline, f"waited for: {what}; {answer}"
            time.sleep(0.1)


def end(ranks: Any, workers: int, folder: Path | None = None) -> list[Any]:
    """Lets all workers end once all have trained; returns the outcomes.

    Args:
      ranks: the processes, of which the first are the workers.
      workers: their number.
      folder: as the workers' `tmp_path`, if some `keep_company`.
    """
    for rank in range(workers):
        ranks.wait_for(rank, "trained", timeout=120)
    if folder is not None:
        (folder / ALL_HAVE_TRAINED).touch()
    for rank in range(workers):
        ranks.send(rank, "end")
    return ranks.join(timeout=60)


def train_together(
    ctx: Any, epochs: int, folder: str, pauses: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Fits the ledger by all-reduce, with a backup every three steps."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = ledger.model(RECORDS)
    data = tfdist.data.from_ranges(RECORDS, TASK, shuffle=True, seed=1)
    callbacks = [
        keras.callbacks.BackupAndRestore(folder, save_freq=3, delete_checkpoint=False),
        Pause(ctx, pauses[ctx.rank]),
    ]
    fitted = model.fit(ledger.batches(data, BATCH), epochs=epochs, verbose=0, callbacks=callbacks)
    (counters,) = model.get_weights()
    return {
        "counters": counters.tolist(),
        "epochs": fitted.epoch,
        "workers": Cluster.from_environment().world_size,
    }
