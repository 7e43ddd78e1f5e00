"""Scripted hangs and mismatches of real jobs: `explain` names the task and the collective."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.patience import wait_until
from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.training.known_gradient import go_on, reach, train
from tfdist import ops
from tfdist.observe import channel, dumps, failures
from tfdist.observe.explain import explain

pytestmark = pytest.mark.timeout(120)
NEVER = threading.Event()


def reduce(elements, label, dtype=tf.float32):
    return ops.all_reduce(tf.ones(elements, dtype), label=label)


def never_ends():
    count = 0
    while True:
        count += 1


def blocked_input():
    def rows():
        yield 1.0
        NEVER.wait()

    signature = tf.TensorSpec((), tf.float32)
    return tf.data.Dataset.from_generator(rows, output_signature=signature)


def other_order(rank):
    for elements, label in ((5, "b"), (4, "a")) if rank == 2 else ((4, "a"), (5, "b")):
        reduce(elements, label)


def other_shape(rank):
    reduce(8 if rank == 1 else 4, "kernel")


def other_dtype(rank):
    reduce(4, "kernel", tf.int32 if rank == 0 else tf.float32)


def missing_rank(rank):
    if rank == 1:
        time.sleep(100)
    reduce(4, "kernel")


def timed_out(rank):
    if rank == 1:
        NEVER.wait(100)
    ops.all_reduce(tf.ones(4), label="kernel", timeout=0.5)


def early_return(rank):
    if rank != 2:
        reduce(4, "kernel")


def dead_worker(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce(4, "kernel")


def stuck_input(rank):
    for _ in blocked_input() if rank == 0 else range(2):
        reduce(4, "kernel")


def endless_loop(rank):
    if rank == 2:
        never_ends()
    reduce(4, "kernel")


class Metric(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and tfdist.rank() == 0:
            ops.all_reduce(tf.ones(1), label="metric")


def callback_of_rank_0(rank):
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")])
        model.compile("sgd", "mse")
    x = np.full((24, 4), 1.0 + rank, "float32")
    model.fit(x, x[:, :1], batch_size=6, epochs=1, verbose=0, callbacks=[Metric()])


def exception(rank):
    if rank == 1:
        raise ValueError("a bad row in the data")
    reduce(4, "kernel")


# By scenario: the kind of the first finding, its tasks, and parts of its text.
EXPECTED = {
    other_order: ("order", ["worker 2"], ["worker 2 started all_reduce 'b'", "all_reduce 'a'"]),
    other_shape: ("mismatch", ["worker 1"], ["shape differs", "'kernel'", "[8]", "[4]"]),
    other_dtype: ("mismatch", ["worker 0"], ["dtype differs", "'kernel'", "int32", "float"]),
    missing_rank: ("missing", ["worker 1"], ["'kernel'", "worker 1 sleeps", "time.sleep(100)"]),
    timed_out: ("missing", ["worker 1"], ["'kernel'", "worker 1 waits for another thread"]),
    early_return: ("missing", ["worker 2"], ["'kernel'", "worker 2 has finished its program"]),
    dead_worker: ("dead", ["worker 1"], ["worker 1 has written no dump"]),
    stuck_input: (
        "missing",
        ["worker 0"],
        ["worker 0 waits for its input pipeline", "stuck_input"],
    ),
    endless_loop: ("missing", ["worker 2"], ["worker 2 runs Python code", "in never_ends"]),
    callback_of_rank_0: ("order", ["worker 0"], ["'metric'", "in on_train_batch_end", "one rank"]),
    exception: ("dead", ["worker 1"], ["worker 1 has ended with an exception", "a bad row"]),
}
# These wait until a command asks; in the others collectives fail, and the tasks write by
# themselves.
HANGS = (missing_rank, stuck_input, endless_loop, callback_of_rank_0)
# The other tasks also tell the task without a failure to write.
ASKED_BY_OTHERS = (timed_out,)


def job(ctx, scenario):
    tfdist.init()
    reduce(3, "start")
    ctx.report("started")
    try:
        globals()[scenario](ctx.rank)
    except Exception:
        sys.excepthook(*sys.exc_info())  # as at the end of a script
        raise


def found(directory, kind):
    """The first finding, if it is of this kind."""
    with contextlib.suppress(FileNotFoundError):
        first = explain(dumps.read_all(directory), dumps.read_crashes(directory))[0]
        return first if first.kind == kind else None


@pytest.mark.long(
    "other_dtype",
    "missing_rank",
    "exception",
    covered_by="the other cases, single/observe/test_recorder.py",
)
@pytest.mark.parametrize("scenario", EXPECTED, ids=lambda scenario: scenario.__name__)
def test_cause(scenario, tmp_path):
    directory = tmp_path / "dumps"
    kind, tasks, parts = EXPECTED[scenario]
    env = {"TFDIST_DEBUG_DIR": str(directory)}
    with start_ranks(job, 3, args=(scenario.__name__,), tmp_path=tmp_path, env=env) as ranks:
        for rank in range(3):
            ranks.wait_for(rank, "started")
        if scenario not in HANGS + ASKED_BY_OTHERS:
            ranks.join(timeout=30)

        def is_explained():
            if scenario in HANGS:
                answers = channel.ask_all(directory, "a test asks", timeout=60)
                assert all(answer.startswith("written") for answer in answers.values()), answers
            finding = found(directory, kind)
            return (
                finding is not None
                and list(finding.tasks) == tasks
                and all(part in finding.text for part in parts)
            )

        try:
            wait_until(is_explained, "the explanation")
        except AssertionError:
            findings = explain(dumps.read_all(directory))
            pytest.fail("\n".join(f"{one.kind} {one.tasks}: {one.text}" for one in findings))


def test_a_task_notes_whether_it_has_failed_by_a_peer(tmp_path):
    directory = tmp_path / "dumps"
    env = {"TFDIST_DEBUG_DIR": str(directory)}
    with start_ranks(job, 2, args=("exception",), tmp_path=tmp_path, env=env) as ranks:
        ranks.join(timeout=30)
    notes = {note.task: note for note in failures.read_all(directory, 0.0)}
    assert {task: note.by_peer for task, note in notes.items()} == {
        "worker 0": True,
        "worker 1": False,
    }
    assert notes["worker 1"].reason == "ValueError: a bad row in the data"
    assert "ended by rank 1" in notes["worker 0"].reason


def test_dead_server(tmp_path):
    directory = tmp_path / "dumps"
    env = {"TFDIST_DEBUG_DIR": str(directory)}
    options = {"pauses": [(3, 6)] * 2}
    with start_ranks(train, 3, kwargs=options, roles=roles(2), env=env, tmp_path=tmp_path) as ranks:
        reach(ranks, 3, 0, 1)
        ranks[2].kill()
        go_on(ranks, 0, 1)

        def is_explained():
            channel.ask_all(directory, "a test asks", timeout=60)
            finding = found(directory, "dead")
            return finding is not None and "has waited" in finding.text

        wait_until(is_explained, "the explanation", timeout=30)
        finding = found(directory, "dead")
    assert finding.tasks == ("ps 0",)
    assert "ps 0 has written no dump" in finding.text
    assert "for it in a p" in finding.text  # a pull, or a push
