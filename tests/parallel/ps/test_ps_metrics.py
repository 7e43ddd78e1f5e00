"""With parameter servers, `fit` logs the metrics of all workers, and a stop stops all of them."""

from __future__ import annotations

import logging
import time
from unittest import mock

import keras
import numpy as np
import pytest
import tf_keras
from keras.callbacks import EarlyStopping, LambdaCallback, ReduceLROnPlateau

import tfdist
from support.processes.ranks import start_ranks
from support.ps_job import meet, on_job, roles, served, train_like_alone
from support.training import models
from support.training.known_gradient import endless
from support.training.models import EXACT, classifier, difference, examples
from tfdist.ops.collectives import collective_keys

BATCH = 16
# Of seven batches rank 0 gets four; tf_keras makes the workers' shares of arrays equal.
ROWS = {"keras": 7 * BATCH - 5, "tf_keras": 6 * BATCH}


class Shares(keras.metrics.Metric):
    """Variables that do not add up: the rows that a worker has seen, and its number."""

    def __init__(self, number=0.0, **options):
        super().__init__(name="shares", **options)
        self.number = number
        self.rows = self.add_variable((), "zeros", aggregation="mean", name="rows")
        self.of = self.add_variable((), "zeros", aggregation="only_first_replica", name="of")

    def update_state(self, labels, predictions, sample_weight=None):
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(labels)[0], "float32"))
        self.of.assign(self.number)

    def result(self):
        return {"rows": self.rows + 0.0, "of": self.of + 0.0}


def binary(library, *metrics, rate=0.0):
    """A compiled model that says whether a label is 0; at the rate 0 it learns nothing."""
    layers = library.layers
    model = library.Sequential(
        [library.Input((models.COLUMNS,)), layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        library.optimizers.SGD(rate),
        "binary_crossentropy",
        metrics=["accuracy", library.metrics.AUC(name="auc"), *metrics],
    )
    return model


def data(rows):
    features, labels = examples(rows)
    return features, (labels == 0).astype("float32")[:, None]


def equal(results):
    """A `check`: all workers have the same history, bit by bit."""
    results = [result for result in results if result is not None]
    assert results[0] and all(result == results[0] for result in results), results


class Lines(logging.Handler):
    """Keeps the logs."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("tfdist").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.mark.long("*-tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@on_job(2, check=equal)
def test_async(ctx, name):
    """Without learning, an epoch's metrics equal one process's on all rows."""
    if served():
        return None
    library = {"keras": keras, "tf_keras": tf_keras}[name]
    own, rows = [Shares(10.0 + ctx.rank)] if library is keras else [], ROWS[name]
    alone = binary(library)
    with tfdist.ParameterServerStrategy().scope():
        model = binary(library, *own)
    alone.set_weights(model.get_weights())
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    history = model.fit(*data(rows), epochs=2, validation_data=data(50), **options).history
    expected = alone.evaluate(*data(rows), return_dict=True, verbose=0)
    validated = alone.evaluate(*data(50), return_dict=True, verbose=0)
    expected |= {f"val_{key}": value for key, value in validated.items()}
    for key, value in expected.items():
        assert difference([history[key]], [[value] * 2]) <= EXACT, key
    if own:
        assert history["rows"] == [rows / 2] * 2 and history["val_rows"] == [50.0] * 2
        assert history["of"] == history["val_of"] == [10.0] * 2
    # A callback's evaluation is the worker's own; a stop of one worker stops all.
    stops_at = {0: 2, 1: 1}[ctx.rank] if library is keras else 1 - ctx.rank
    seen = []

    def end(epoch, logs):
        if ctx.rank == 0:
            seen.append(model.evaluate(*data(rows), return_dict=True, verbose=0)["auc"])
        if epoch == stops_at:
            model.stop_training = True

    callback = library.callbacks.LambdaCallback(on_epoch_end=end)
    stopped = model.fit(*data(rows), epochs=5, callbacks=[callback], **options)
    assert stopped.epoch == ([0, 1] if library is keras else [0])
    own = model.evaluate(*data(rows), return_dict=True, verbose=0)["auc"]
    assert difference([seen], [[own] * len(seen)]) <= EXACT
    # Keras 3 evaluates all rows on each worker, tf_keras a share; validation is the mean of these.
    assert library is tf_keras or abs(own - expected["auc"]) <= EXACT
    return history


@on_job(2, servers=2, check=equal)
def test_sync(ctx):
    """The history of one process, and so the epochs and the learning rates of one."""
    if served():
        return None
    epochs, rates = 12, []

    def fit(model):
        stop = EarlyStopping("val_loss", patience=1, min_delta=0.01, restore_best_weights=True)
        slower = ReduceLROnPlateau("loss", factor=0.75, patience=1, min_delta=10.0)
        history = model.fit(
            models.dataset(64 * 4, 64),
            epochs=epochs,
            validation_data=models.dataset(100, 20),
            callbacks=[slower, stop],
            verbose=0,
        )
        rates.append(float(model.optimizer.learning_rate.numpy()))
        return history

    model = train_like_alone(
        lambda: classifier(keras.optimizers.SGD(0.25)), fit, EXACT, mode="sync"
    )
    assert 3 < len(model.history.epoch) < epochs
    assert rates == [rates[0]] * 2
    history = model.history.history
    # The chief alone decides that it is enough, and the other one has no step without it.
    start = time.monotonic()
    stop = LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True))
    stopped = model.fit(
        models.dataset(128, 64), epochs=3, callbacks=[] if ctx.rank else stop, verbose=0
    )
    assert stopped.epoch == [0]

    # The chief's actions at the end of `fit` have happened for all workers when `fit` returns.
    def restore(logs):
        time.sleep(0.5)
        model.set_weights([np.full(weight.shape, 7.0) for weight in model.get_weights()])

    restores = LambdaCallback(on_train_end=restore)
    model.fit(models.dataset(128, 64), callbacks=[] if ctx.rank else restores, verbose=0)
    assert all((weight == 7.0).all() for weight in model.get_weights())
    # In the middle of an epoch: the other one's steps wait for the chief until this has left.
    middle = LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(
            model, "stop_training", ctx.rank == 0 and batch == 1
        )
    )
    stopped = model.fit(models.dataset(64 * 6, 64), epochs=3, callbacks=[middle], verbose=0)
    assert stopped.epoch == [0] and time.monotonic() - start < 30
    return history


@on_job(2, check=equal)
def test_what_steps_log_themselves(ctx):
    """Without metrics an epoch's logs are its last step's: here the workers' mean."""
    if served():
        return None

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs):
            return self.layer(inputs)

        def train_step(self, data):
            return {"rank": keras.ops.cast(10 + ctx.rank, "float32")}

    with tfdist.ParameterServerStrategy().scope():
        model = Model()
        model.compile("sgd")
    history = model.fit(*data(64), batch_size=16, verbose=0, shuffle=False).history
    assert history == {"rank": [10.5]}
    return history


@on_job(2)
def test_epochs_of_different_lengths(ctx):
    """With bounded staleness a longer epoch waits for the other worker's next steps."""
    if served():
        return
    log = Lines()
    strategy = tfdist.ParameterServerStrategy(mode="ssp", staleness=2, worker_timeout=3.0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    start = time.monotonic()
    steps, epochs = {0: (4, 3), 1: (12, 2)}[ctx.rank]
    history = model.fit(endless(), steps_per_epoch=steps, epochs=epochs, verbose=0)
    assert history.epoch == [*range(epochs)]
    meet(ctx, "trained")  # rank 0 stays connected, but makes no step
    assert time.monotonic() - start < 20
    missed = [line for line in log.lines if "metrics are without" in line]
    assert len(missed) <= 1, missed


@on_job(2, servers=2)
def test_epochs_of_different_lengths_with_reductions(ctx):
    """A worker that waits in a reduction on another server than the rounds' is not waited for."""
    if served():
        return
    log = Lines()
    with tfdist.ParameterServerStrategy(mode="sync", epoch_timeout=120.0).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01, clipnorm=1.0), "mse")
    start = time.monotonic()
    steps, epochs = {0: (6, 1), 1: (3, 2)}[ctx.rank]
    next_key = collective_keys.next_key
    with mock.patch.object(
        collective_keys, "next_key", lambda among: next_key(among) | 1
    ):  # modulo 2
        history = model.fit(endless(), steps_per_epoch=steps, epochs=epochs, verbose=0)
    assert history.epoch == [*range(epochs)]
    assert time.monotonic() - start < 60
    missed = [line for line in log.lines if "metrics are without" in line]
    assert len(missed) == ctx.rank, missed
    assert all("has steps left, which wait for the other workers" in line for line in missed)


def stand_still(ctx, epochs):
    """Trains; the last worker begins its second epoch when the test says so."""
    tfdist.init()
    log = Lines()
    # With some initial values the workers' losses hardly differ.
    keras.utils.set_random_seed(4)
    with tfdist.ParameterServerStrategy().scope():
        model = binary(keras, Shares())

    def begin(epoch, logs):
        if (ctx.rank, epoch) == (1, 1):
            ctx.report("stands still")
            ctx.wait_for("continue", timeout=240)

    ended = []

    def end(epoch, logs):
        ended.append(time.monotonic())
        ctx.report("ended", epoch)

    callback = LambdaCallback(
        on_epoch_begin=begin,
        on_epoch_end=end,
        on_train_batch_end=lambda batch, logs: ctx.report("batch", (len(ended), batch)),
    )
    history = model.fit(
        *data(96), batch_size=16, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback]
    )
    return {"history": history.history, "ended": ended, "lines": log.lines}


@pytest.mark.timeout(180)
def test_a_worker_that_dies_is_left_out():
    with start_ranks(stand_still, 3, kwargs={"epochs": 4}, roles=roles(2)) as ranks:
        ranks.wait_for(1, "stands still", timeout=90)
        ranks.wait_for(0, "ended", 0)
        assert ("ended", 1) not in ranks[0].reports
        killed = ranks[1].kill()
        (chief,) = ranks.join(timeout=60, only=[0])
    assert chief.ok, chief.describe()
    assert max(chief.result["ended"]) - killed < 15
    # Of all rows in the first epoch, of the chief's alone from then on.
    first, *others = chief.result["history"]["loss"]
    assert others == [others[0]] * 3 and abs(first - others[0]) > 1e-3
    lines = [line for line in chief.result["lines"] if "metrics are without" in line]
    assert len(lines) == 1, lines
    assert "epoch 2 of fit: its metrics are without worker 0" in lines[0], lines
    assert "which is dead, or its connection broke" in lines[0]


@pytest.mark.long(covered_by="parallel/ps/test_ps_faults.py, test_a_worker_that_dies_is_left_out")
@pytest.mark.timeout(180)
def test_a_server_that_is_started_again_meanwhile():
    """The server loses the posts, and the workers post again."""
    with start_ranks(stand_still, 3, kwargs={"epochs": 2}, roles=roles(2)) as ranks:
        ranks.wait_for(1, "stands still", timeout=90)
        ranks.wait_for(0, "batch", (1, 2))  # the last one: now it waits
        ranks[2].kill()
        ranks.restart(2)
        ranks.send(1, "continue")
        outcomes = ranks.join(timeout=90, only=[0, 1])
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    assert outcomes[0].result["history"] == outcomes[1].result["history"]
    first, second = outcomes[0].result["history"]["loss"]
    assert abs(first - second) <= EXACT  # which half of the rows would not have given
