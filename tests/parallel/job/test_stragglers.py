"""A worker that is slow on purpose is named: by the log, the metrics and `tfdist top`."""

from __future__ import annotations

import logging
import time

import keras
import numpy as np
import tensorflow as tf
from ranks import on_ranks

import tfdist
from tfdist.job import process
from tfdist.live.records import activity
from tfdist.live.sampler import Sampler
from tfdist.live.targets import Targets

SECRET = "a secret of the test"
LATE = 1
ENVIRONMENT = {
    "TFDIST_METRICS_PORT": "0",
    "TFDIST_SECRET": SECRET,
    "TFDIST_STRAGGLER_PERIOD": "600",
}


class Lines(logging.Handler):
    """Keeps the report's lines."""

    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        if "waited" in record.getMessage():
            self.found.append(record.getMessage())


class Slow(keras.callbacks.Callback):
    """Makes a rank late for each step."""

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.25)


def sample():
    """What this rank's own task tells, by the command's way."""
    addresses = {"own": f"127.0.0.1:{process.current._exporter.port}"}
    sampler = Sampler(Targets(addresses, SECRET.encode()))
    try:
        return sampler.sample(events=10.0)
    finally:
        sampler.close()


def names_it(lines, rank):
    return f"worker {rank}: waited " in lines[-1] and f" s for worker {LATE} (" in lines[-1]


@on_ranks(3, env=ENVIRONMENT)
def test_fit(ctx):
    lines = Lines()
    logging.getLogger("tfdist").addHandler(lines)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="only")])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.ones([48, 4], "f4")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(6)
    model.fit(data, epochs=1, verbose=0, shuffle=False)
    before, done = sample(), len(lines.found)
    slow = [Slow()] if ctx.rank == LATE else []
    model.fit(data, epochs=1, verbose=0, callbacks=slow)
    after = sample()
    if ctx.rank == LATE:
        assert not any(f"for worker {LATE}" in line for line in lines.found)
    else:
        # Once, at the end of `fit`: the 8 steps lasted 2 s.
        assert len(lines.found) == done + 1 and names_it(lines.found, ctx.rank), lines.found
        assert "since step 8)" in lines.found[-1] and "most in all_reduce" in lines.found[-1]
        job = activity(before, after)
        assert job.straggler == f"worker {LATE}" and job.waited_for[job.straggler] > 0.3
    (told,) = after
    assert told.state.value("tfdist_steps") == 16
    assert [number for number, _ in told.state.loss][0] == 1
    kinds = {(event.kind, event.operation) for event in told.state.events}
    assert ("collective", "all_reduce") in kinds and any(kind == "span" for kind, _ in kinds)
    sent = told.state.traffic
    assert set(sent) == {f"worker {rank}" for rank in range(3) if rank != ctx.rank}
    stats = strategy.communication_stats()
    assert sum(one for one, _ in sent.values()) == stats.bytes_sent
    assert sum(other for _, other in sent.values()) == stats.bytes_received


@on_ranks(2)
def test_a_custom_loop(ctx):
    lines = Lines()
    logging.getLogger("tfdist").addHandler(lines)
    tfdist.init()
    for step in range(3):
        if ctx.rank == LATE and step:
            time.sleep(1.0)
        tfdist.ops.all_reduce(tf.ones(4), label="gradients")
    # As at the end of the program.
    process.current.disconnect()
    if ctx.rank != LATE:
        assert names_it(lines.found, ctx.rank) and "all_reduce 'gradients'" in lines.found[-1]
        assert "since step" not in lines.found[-1]
    else:
        assert not lines.found
