"""The errors of the other workers when one dies, stops, fails or calls something else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks, start_ranks, tf_config
from support.training.models import classifier, examples
from support.warm_python import interpreter
from tfdist import ops
from tfdist.launch.ports import free_ports

# Seconds within which a worker's end must reach all others.
SOON = 2.0
TIMEOUT = 3.0


class ReportStep(keras.callbacks.Callback):
    """Tells the test when a worker has trained for ten steps."""

    def __init__(self, ctx) -> None:
        super().__init__()
        self._ctx = ctx

    def on_train_batch_end(self, batch, logs=None) -> None:
        if batch == 10:
            self._ctx.report("step", batch)


def train_for_ever(ctx, timeout=None):
    options = tfdist.CommunicationOptions(timeout_seconds=timeout)
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        model = classifier("sgd")
    batches = tf.data.Dataset.from_tensor_slices(examples(64)).repeat().batch(32)
    try:
        model.fit(batches, steps_per_epoch=10**6, verbose=0, callbacks=[ReportStep(ctx)])
    finally:
        ctx.report("fit ended")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (3, 1)])
def test_a_killed_worker_ends_fit_on_all_others_soon(size, victim):
    others = [rank for rank in range(size) if rank != victim]
    with start_ranks(train_for_ever, size) as ranks:
        for rank in range(size):
            ranks.wait_for(rank, "step", timeout=60)
        killed_at = ranks[victim].kill()
        outcomes = ranks.join(timeout=20)
    assert outcomes[victim].signal == signal.SIGKILL
    for rank in others:
        assert outcomes[rank].exception == "UnavailableError", outcomes[rank].describe()
        assert f"rank {rank} of {size}" in outcomes[rank].message
        assert f"lost rank {victim} (" in outcomes[rank].message
        assert outcomes[rank].finished_at - killed_at < SOON


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("size", "victim"), [(2, 1), (3, 0)])
def test_a_stopped_worker_is_named_after_the_timeout(size, victim):
    others = [rank for rank in range(size) if rank != victim]
    with start_ranks(train_for_ever, size, kwargs={"timeout": TIMEOUT}) as ranks:
        for rank in range(size):
            ranks.wait_for(rank, "step", timeout=60)
        stopped_at = ranks[victim].stop()
        for rank in others:
            ranks.wait_for(rank, "fit ended", timeout=20)
        ranks[victim].resume()
        outcomes = ranks.join(timeout=30)
    for rank in others:
        assert outcomes[rank].exception == "DeadlineExceededError", outcomes[rank].describe()
        message = outcomes[rank].message
        assert f"waited {TIMEOUT:g} s for rank {victim} (" in message
        assert "which does not respond" in message
        assert re.search(r"(all_reduce|all_gather) '\w.*' \w+\[", message), message
        assert TIMEOUT - 1 < outcomes[rank].finished_at - stopped_at < TIMEOUT + 3
    # The worker itself wakes up in a job that has ended without it.
    assert outcomes[victim].exception == "DeadlineExceededError", outcomes[victim].describe()


def communicator() -> ops.Communicator:
    return tfdist.MultiWorkerMirroredStrategy().communicator


def _raises(kind, call, *parts: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("how", ["shape", "dtype", "reduce_op", "kind", "root"])
@on_ranks(2)
def test_collectives_that_differ_name_both(ctx, how, compiled):
    comm = communicator()
    four = tf.ones([4])
    first = lambda: ops.all_reduce(four, comm, label="first")  # noqa: E731
    second, theirs = {
        "shape": (lambda: ops.all_reduce(tf.ones([2, 2]), comm, label="second"), "float[2,2]"),
        "dtype": (lambda: ops.all_reduce(tf.ones([4], "int32"), comm, label="second"), "int32[4]"),
        "reduce_op": (lambda: ops.all_reduce(four, comm, "mean", label="second"), "(mean)"),
        "kind": (lambda: ops.all_gather(four, comm, label="second"), "all_gather"),
        # Both wait for the other one's value.
        "root": (lambda: ops.broadcast(four, comm, 0, label="second"), "(root 0)"),
    }[how]
    if how == "root":
        first = lambda: ops.broadcast(four, comm, 1, label="first")  # noqa: E731

    def step():
        return first() if ctx.rank == 0 else second()

    step = tf.function(step) if compiled else step
    _raises(tf.errors.InvalidArgumentError, step, "disagree", "'first'", "'second'", theirs)
    # The communicator has ended: later collectives fail at once.
    _raises(tf.errors.InvalidArgumentError, first, "'first'", "'second'")


@on_ranks(2)
def test_functions_that_differ_name_both(ctx):
    comm = communicator()

    @tf.function
    def left():
        return ops.all_reduce(tf.ones([4]), comm, label="left", timeout=40.0)

    @tf.function
    def right():
        return ops.all_gather(tf.ones([5]), comm, label="right", timeout=40.0)

    start = time.monotonic()
    step = left if ctx.rank == 0 else right
    _raises(
        tf.errors.InvalidArgumentError,
        step,
        "wait for each other in different collectives",
        "all_reduce 'left'",
        "all_gather 'right'",
    )
    # Noticed after a tenth of the timeout, not at its end.
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
@on_ranks(3)
def test_a_collective_that_another_rank_never_starts_names_rank_and_tensor(ctx, compiled):
    comm = communicator()

    def reduce(label):
        return ops.all_reduce(tf.ones([4]), comm, label=label, timeout=1.0)

    def step():
        total = reduce("common")
        return total if ctx.rank == 1 else total + reduce("extra")

    step = tf.function(step) if compiled else step
    if ctx.rank == 1:
        np.testing.assert_array_equal(step(), [3, 3, 3, 3])
        ctx.barrier("noticed")
        return
    _raises(
        tf.errors.DeadlineExceededError,
        step,
        "all_reduce 'extra' float[4] waited 1 s for rank 1 (",
        "which has not started it and has no collective pending",
    )
    ctx.barrier("noticed")


@on_ranks(2)
def test_a_step_that_fails_on_one_worker_ends_the_others_collective(ctx):
    comm = communicator()
    if ctx.rank == 1:
        ctx.barrier("ready")
        pending = lambda: ops.all_reduce(tf.ones([3]), comm, label="pending")  # noqa: E731
        start = time.monotonic()
        _raises(tf.errors.UnavailableError, pending, "rank 0 (", "cancelled all_reduce 'gradient'")
        assert time.monotonic() - start < 20
        return

    sent_before = comm.stats().bytes_sent

    def no_number_once_in_flight(_):
        # A small collective sends at once, so the sent bytes show that it is in progress.
        deadline = time.monotonic() + 20
        while comm.stats().bytes_sent == sent_before:
            assert time.monotonic() < deadline
        ctx.barrier("ready")
        return "half a loss"

    @tf.function
    def step(values):
        # Stateless for TensorFlow, or it would wait for the collective; of an argument, or it would
        # be computed in advance.
        text = tf.numpy_function(no_number_once_in_flight, [values], tf.string, stateful=False)
        total = ops.all_reduce(values, comm, label="gradient")
        return total * tf.strings.to_number(text)

    _raises(tf.errors.InvalidArgumentError, lambda: step(tf.ones([100])), "half a loss")
    # Its own collectives report the cause.
    later = lambda: ops.all_reduce(tf.ones([3]), comm, label="later")  # noqa: E731
    _raises(tf.errors.UnavailableError, later, "cancelled all_reduce 'gradient'")


def train_with_bad_batch(ctx):
    """Rank 1's fourth batch makes its own step fail."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    features, labels = examples(32 * 8)
    if ctx.rank == 1:
        features[32 * 3 :] = np.nan

    def loss(labels, logits):
        tf.debugging.assert_all_finite(logits, "a logit is not finite")
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    with strategy.scope():
        model = classifier("sgd")
        model.compile("sgd", loss)
    batches = tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    model.fit(batches.with_options(options), verbose=0)


@pytest.mark.timeout(240)
def test_a_bad_batch_on_one_worker_ends_fit_on_both():
    with start_ranks(train_with_bad_batch, 2) as ranks:
        outcomes = ranks.join(timeout=60)
    assert outcomes[1].exception == "InvalidArgumentError", outcomes[1].describe()
    assert "a logit is not finite" in outcomes[1].message
    assert outcomes[0].exception == "UnavailableError", outcomes[0].describe()
    assert "rank 1 (" in outcomes[0].message
    assert outcomes[0].finished_at - outcomes[1].finished_at < SOON


SCRIPT = textwrap.dedent("""
    import json, os, sys, time
    import tensorflow as tf
    import tfdist
    from tfdist import ops

    comm = tfdist.MultiWorkerMirroredStrategy().communicator
    for step in range(10**6):
        if comm.rank == 1 and step == 5:
            print("raised at", time.monotonic(), flush=True)
            raise ValueError("the disk is full")
        try:
            ops.all_reduce(tf.ones([10]), comm, label="gradient")
        except tf.errors.UnavailableError as error:
            print(json.dumps([time.monotonic(), str(error)]), flush=True)
            raise
""")


@pytest.mark.timeout(120)
def test_a_script_that_raises_tells_the_others_why(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    search = os.pathsep.join(path or os.getcwd() for path in sys.path)
    processes = [
        subprocess.Popen(
            [interpreter(), str(script)],
            env={
                **os.environ,
                "PYTHONPATH": search,
                "TF_CONFIG": tf_config(("worker", "worker"), addresses, rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [1, 1], outputs
    assert "ValueError: the disk is full" in outputs[1][1]
    raised_at = float(outputs[1][0].split()[-1])
    heard_at, message = json.loads(outputs[0][0])
    assert "rank 0 of 2: ended by rank 1 (" in message
    assert "rank 1 ended with ValueError: the disk is full" in message
    assert heard_at - raised_at < SOON
