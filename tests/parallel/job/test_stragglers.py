"""A worker that is slow on purpose is named: by the log, the metrics and `tfdist top`."""

from __future__ import annotations

import logging
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist.job import process
from tfdist.observe.live.records import activity
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.targets import Targets

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
    """The report of this rank's own task, by the command's way."""
    address = f"127.0.0.1:{process.current._observers._exporter.port}"
    sampler = Sampler(Targets({address: address}, SECRET.encode()))
    try:
        return sampler.sample(events=10.0)
    finally:
        sampler.close()


def check_fit(results):
    """The ranks' logs and findings together: rank 0 alone reports."""
    (line,), *others = [lines for lines, _ in results]
    assert line.startswith(f"worker 0: worker {LATE} is late: others waited up to "), line
    assert "since step 8), most in all_reduce" in line
    assert others == [[], []]
    waited_for = {}
    for _, waits in results:
        for name, share in waits.items():
            waited_for[name] = waited_for.get(name, 0.0) + share
    assert max(waited_for, key=waited_for.get) == f"worker {LATE}", waited_for


@on_ranks(3, env=ENVIRONMENT, check=check_fit)
def test_fit(ctx):
    lines = Lines()
    logging.getLogger("tfdist").addHandler(lines)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="only")])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.ones([48, 4], "f4")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(6)
    model.fit(data, epochs=1, verbose=0)
    before = sample()
    lines.found.clear()
    # 8 steps of at least 0.25 s; the report comes at the end of `fit`.
    model.fit(data, epochs=1, verbose=0, callbacks=[Slow()] if ctx.rank == LATE else [])
    after = sample()
    found = list(lines.found)
    waits = activity(before, after).tasks[0].waits
    (told,) = after
    assert told.state.value("tfdist_steps") == 16
    assert [number for number, _ in told.state.curves["loss"]][0] == 1
    kinds = {(event.kind, event.operation) for event in told.state.events}
    assert ("collective", "all_reduce") in kinds and any(kind == "span" for kind, _ in kinds)
    sent = told.state.traffic
    assert set(sent) == {f"worker {rank}" for rank in range(3) if rank != ctx.rank}
    stats = strategy.communication_stats()
    assert sum(one for one, _ in sent.values()) == stats.bytes_sent
    assert sum(other for _, other in sent.values()) == stats.bytes_received
    return found, waits


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
    if ctx.rank == 0:
        (line,) = lines.found
        assert f"worker 0: worker {LATE} is late: others waited up to " in line
        assert "most in all_reduce 'gradients'; it waited " in line and "since step" not in line
    else:
        assert not lines.found
