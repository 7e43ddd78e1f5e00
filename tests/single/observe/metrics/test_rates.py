"""Counters as rates, and their scalars in TensorBoard's files."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.job import process
from tfdist.observe.metrics import rates
from tfdist.observe.metrics.collector import Family


def families(steps, wait, size):
    return [
        Family("tfdist_info", "", False, ("version",), [(("1",), 1.0)]),
        Family("tfdist_steps", "", True, (), [((), steps)]),
        Family("tfdist_wait_seconds", "", True, ("peer",), [((p,), w) for p, w in wait.items()]),
        Family("tfdist_world_size", "", False, (), [((), size)]),
    ]


def test_rates(monkeypatch):
    now = 100.0
    monkeypatch.setattr(rates.time, "monotonic", lambda: now)
    found = rates.Rates()
    assert dict(found.scalars(families(3, {"worker 1": 1.0}, 2))) == {"tfdist/world_size": 2}
    now = 104.0
    # A peer that came meanwhile has no rate yet.
    assert dict(found.scalars(families(13, {"worker 1": 2.0, "worker 2": 9.0}, 3))) == {
        "tfdist/steps_per_second": 2.5,
        "tfdist/wait_share/worker 1": 0.25,
        "tfdist/world_size": 3,
    }


def test_the_callback(tmp_path, monkeypatch):
    monkeypatch.setattr(process.current, "counts_steps", False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # writing does not need it
    strategy = tfdist.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    callback = tfdist.callbacks.Metrics(str(tmp_path / "logs"), update_freq=2)
    x = np.ones([24, 4], "f4")
    model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=[callback])
    (path,) = (tmp_path / "logs" / "worker-0").iterdir()
    found: dict[str, list] = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(
                (event.step, float(tf.make_ndarray(value.tensor)))
            )
    assert [step for step, _ in found["tfdist/steps_per_second"]] == [2, 4, 6]
    for (_, steps), (_, rows) in zip(
        found["tfdist/steps_per_second"], found["tfdist/samples_per_second"], strict=True
    ):
        assert steps > 0 and rows == pytest.approx(4 * steps, rel=1e-4)
    assert found["tfdist/world_size"][0][1] == 1


@pytest.mark.parametrize("update_freq", [0, "batch", True])
def test_when_to_write(update_freq):
    with pytest.raises(ValueError, match='Metrics: expected update_freq to be "epoch"'):
        tfdist.callbacks.Metrics("logs", update_freq=update_freq)
