"""Scripts of several calls of `fit`, `evaluate` and `predict`, one of whose workers is replaced.

A newcomer leaves out the calls that are over, and has then what the others have.
"""

from __future__ import annotations

import importlib
import logging
import random
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from tfdist.elastic.calls import CallFailedError
from tfdist.elastic.job import Unit
from tfdist.elastic.states import elastic_job
from tfdist.errors import TfdistError

pytestmark = pytest.mark.timeout(240)
ELASTIC = {"TFDIST_ELASTIC": "1:2"}
ROWS, EPOCHS = 80, 3


def _places(keras, ctx, name):
    """A callback: the first worker waits at a place until the test says "continue"."""

    class Places(keras.callbacks.Callback):
        seen: list = []

        def __init__(self):
            super().__init__()
            self.batches = 0
            self.takes = None

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if ctx is not None and (name, self.batches) in PLACES:
                ctx.report("at", (name, self.batches))
                how = ctx.wait_for(f"continue {name}", 60.0)
                if how == WITH_NEWCOMER:
                    _await_newcomer()
                elif how == NOBODY:
                    _await_newcomer()
                    self.takes = elastic_job().take_flags
                    elastic_job().take_flags = lambda flags: None

        def on_train_end(self, logs=None):
            if self.takes is not None:
                elastic_job().take_flags = self.takes

    return Places()


# Of a worker that has them in its way; others' `_places` do not wait.
PLACES = [("first", 2), ("first", 8), ("second", 2)]
# At the second one of each pair the first worker knows that the other one has died.
PLACES += [("turn", 2), ("turn", 4), ("last", 2), ("last", 4)]


WITH_NEWCOMER = "when a newcomer waits"
NOBODY = "when a newcomer waits, and take no newcomer in until the end of this call"


def _await_newcomer():
    job, deadline = elastic_job(), time.monotonic() + 60
    # It may have joined already.
    while job.size < 2 and not job._membership.newcomers_wait():
        assert time.monotonic() < deadline
        job.pause(0.01)


def _model(keras, outputs, activation):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, "tanh"),
            keras.layers.Dropout(0.0),
            keras.layers.Dense(outputs, activation),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def two_stages(ctx, library, distributed=True):
    """Returns what each stage has computed, and what a script may decide by."""
    keras = importlib.import_module(library)
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(3)
    strategy = tfdist.MultiWorkerMirroredStrategy() if distributed else tf.distribute.get_strategy()
    x = np.random.default_rng(0).normal(size=(ROWS, 6))
    held = ctx if distributed else None
    with strategy.scope():
        first = _model(keras, 6, None)
    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=1, restore_best_weights=True)
    places = _places(keras, held, "first")
    history = first.fit(x, x, batch_size=16, epochs=EPOCHS, verbose=0, callbacks=[stopping, places])
    found = {
        "history": history.history,
        "epochs": history.epoch,
        "first": first.get_weights(),
        "slots": [np.asarray(v) for v in _variables(first.optimizer)],
        "best": float(stopping.best),
        "batches": places.batches,
        "drawn": [random.random(), np.random.random(), float(tf.random.uniform([]))],
    }
    if ctx is not None:
        ctx.report("over", "first")
    code = first.predict(x, batch_size=20, verbose=0)
    found["evaluated"] = first.evaluate(x, x, batch_size=20, verbose=0)
    found["predicted"] = code
    chosen = (np.abs(code[:, 0]) > np.median(np.abs(code[:, 0]))).astype("float64")
    with strategy.scope():
        second = _model(keras, 1, "sigmoid")
    second.fit(
        code,
        chosen[:, None],
        batch_size=16,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[_places(keras, held, "second")],
    )
    found["second"] = second.get_weights()
    found["after"] = first.get_weights()
    return found


def _variables(optimizer):
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def _alone(body, *args):
    with start_ranks(body, 1, args=[*args, False], env={"TF_CONFIG": ""}) as ranks:
        (outcome,) = ranks.join(60.0)
    assert outcome.ok, outcome.describe()
    return outcome.result


def _check(found, expected, tolerance):
    for name, value in expected.items():
        for own, other in zip(_leaves(found[name]), _leaves(value), strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=tolerance, err_msg=name)


def _leaves(value):
    return tf.nest.flatten(value)


@pytest.mark.long("0-tf_keras", "1-*", covered_by="the other cases")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_was_started_in_the_second_stage_has_the_first_one(library, victim):
    with start_ranks(two_stages, 2, args=[library], env=ELASTIC) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "at", ("first", 2))
        ranks[victim].kill()
        survivor = 1 - victim
        for _ in range(2):
            ranks.send(survivor, "continue first")
        ranks.wait_for(survivor, "at", ("second", 2))
        ranks.restart(victim)
        ranks.wait_for(victim, "over", "first")
        ranks.send(victim, "continue second")
        ranks.send(survivor, "continue second", WITH_NEWCOMER)
        outcomes = ranks.join(90.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    results = [outcome.result for outcome in outcomes]
    _check(results[victim], results[survivor], 0.0)
    _check(results[survivor], _alone(two_stages, library), 1e-12)


@pytest.mark.long(covered_by="parallel/elastic/test_newcomers_wait.py")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_fit_that_ends_while_a_newcomer_waits_for_it(library):
    with start_ranks(two_stages, 2, args=[library], env=ELASTIC) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "at", ("first", 2))
        ranks[1].kill()
        ranks.send(0, "continue first")
        ranks.wait_for(0, "at", ("first", 8))
        ranks.restart(1)
        # It waits at the other one, which takes no newcomer in.
        ranks.send(0, "continue first", NOBODY)
        ranks.wait_for(1, "over", "first", timeout=60.0)
        ranks.wait_for(0, "at", ("second", 2))
        ranks.send(1, "continue second")
        ranks.send(0, "continue second", WITH_NEWCOMER)
        outcomes = ranks.join(90.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    _check(outcomes[1].result, outcomes[0].result, 0.0)
    _check(outcomes[0].result, _alone(two_stages, library), 1e-12)


def fits_in_turns(ctx, distributed=True):
    """Two models, trained in turns."""
    import keras

    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.get_strategy()
    if distributed:
        strategy = tfdist.MultiWorkerMirroredStrategy()
    held = ctx if distributed else None
    x = np.random.default_rng(0).normal(size=(ROWS, 6))
    y = x.sum(axis=1, keepdims=True)
    with strategy.scope():
        models = [_model(keras, 1, None), _model(keras, 1, "tanh")]
    losses = []
    for turn in range(6):
        model = models[turn % 2]
        places = _places(keras, held, {1: "turn", 4: "last"}.get(turn))
        history = model.fit(
            x,
            y,
            batch_size=16,
            initial_epoch=turn // 2,
            epochs=turn // 2 + 1,
            verbose=0,
            callbacks=[places],
        )
        losses += history.history["loss"]
    return {"weights": [model.get_weights() for model in models], "losses": losses[-1:]}


@pytest.mark.long(covered_by="test_a_worker_that_was_started_in_the_second_stage_has_the_first_one")
def test_two_models_in_turns_whose_workers_are_both_replaced():
    """The first newcomer is rank 0 in the end."""
    with start_ranks(fits_in_turns, 2, env=ELASTIC) as ranks:
        for victim, place in ((1, "turn"), (0, "last")):
            survivor = 1 - victim
            for rank in range(2):
                ranks.wait_for(rank, "at", (place, 2), timeout=60.0)
            ranks[victim].kill()
            ranks.send(survivor, f"continue {place}")
            ranks.wait_for(survivor, "at", (place, 4))
            ranks.restart(victim)
            # It makes the rest of this fit.
            ranks.send(survivor, f"continue {place}", WITH_NEWCOMER)
        outcomes = ranks.join(90.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    first, second = (outcome.result for outcome in outcomes)
    _check(first, second, 0.0)
    _check(second, _alone(fits_in_turns), 1e-12)


def _failing(ctx):
    """The second of three calls fails in all workers, and the program continues."""
    import keras

    keras.utils.set_random_seed(3)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = _model(keras, 1, None)
    x = np.ones((32, 6))
    y = x.sum(axis=1, keepdims=True)
    model.fit(x, y, batch_size=16, verbose=0)
    try:
        model.fit(x, y[:16], batch_size=16, verbose=0)
    except Exception as error:
        failure = error
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[_places(keras, ctx, "second")])
    return type(failure).__name__, str(failure), model.get_weights()


@pytest.mark.long(covered_by="test_a_worker_in_another_call_ends_at_once")
def test_a_call_that_has_failed_fails_in_a_newcomer_too():
    with start_ranks(_failing, 2, env={"TFDIST_ELASTIC": "1:2:1"}) as ranks:
        ranks.wait_for(0, "at", ("second", 2))
        ranks.send(1, "continue second")
        ranks.send(0, "continue second", WITH_NEWCOMER)
        outcomes = ranks.join(60.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    (kind, _, weights), (name, text, others) = (outcome.result for outcome in outcomes)
    if name != kind:  # it was there in time to fail itself
        assert name == CallFailedError.__name__ and f"it has ended with {kind}" in text
    _check({"weights": others}, {"weights": weights}, 0.0)


def _trains_batches(ctx):
    import keras

    keras.utils.set_random_seed(3)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = _model(keras, 1, None)
    x = np.ones((32, 6))
    if ctx.rank == 0:
        model.fit(x, x[:, :1], batch_size=16, verbose=0, callbacks=[_places(keras, ctx, "first")])
        return
    ctx.wait_for("go")
    with pytest.raises(TfdistError, match="to be trained by fit.*received train_on_batch"):
        model.train_on_batch(x, x[:, :1])


def test_a_newcomer_cannot_train_batches_alone():
    with start_ranks(_trains_batches, 2, env={"TFDIST_ELASTIC": "1:2:1"}) as ranks:
        ranks.wait_for(0, "at", ("first", 2))
        ranks.send(1, "go")
        outcomes = ranks.join(60.0, only=[1])
        ranks.send(0, "continue first")
        outcomes += ranks.join(60.0, only=[0])
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)


@on_ranks(2, env={"TFDIST_ELASTIC": "1:2", "TFDIST_RENDEZVOUS_TIMEOUT": "2"})
def test_generations_without_a_unit_of_work_are_bounded(ctx):
    from tfdist.elastic import job as jobs

    jobs._MAX_VAIN, jobs._MAX_IDLE_GENERATIONS = 10_000, 12
    tfdist.MultiWorkerMirroredStrategy()
    job = elastic_job()

    def fail():
        job.communicator.abort("this unit never succeeds")
        raise tf.errors.UnavailableError(None, None, "this unit never succeeds")

    with pytest.raises(TfdistError, match="a vain unit: could not be done in 1[0-9] generations"):
        job.run(Unit("a vain unit", fail))
    # The program may have caught that: it is over all the same.
    with pytest.raises(TfdistError, match="a vain unit: could not be done"):
        job.run(Unit("another unit", lambda: None))


@pytest.mark.long("*-evaluate", covered_by="the other cases")
@pytest.mark.parametrize("extra", ["evaluate", "fit"])
@on_ranks(2, env=ELASTIC, timeout=120.0)
def test_a_worker_in_another_call_ends_at_once(ctx, extra):
    """It need not wait until a collective of the others has its timeout."""
    import keras

    keras.utils.set_random_seed(3)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = _model(keras, 1, None)
    x = np.ones((32, 6))
    model.fit(x, x[:, :1], batch_size=16, verbose=0)
    if ctx.rank == 1:
        began = time.monotonic()
        call = getattr(model, extra)
        differs = f"expected the same call on all members: .*predict.*received .*, {extra}'.*caught"
        with pytest.raises(TfdistError, match=differs):
            call(x, x[:, :1], batch_size=16, verbose=0)
        assert time.monotonic() - began < 30.0
        return
    assert model.predict(x, verbose=0).shape == (32, 1)
    assert len(model.fit(x, x[:, :1], batch_size=16, verbose=0).history["loss"]) == 1


@on_ranks(2, env=ELASTIC)
def test_founders_that_train_batches_are_warned(ctx):
    import keras

    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logging.getLogger("tfdist.elastic").addHandler(handler)

    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = _model(keras, 1, None)
    x = np.ones((32, 6))
    model.fit(x, x[:, :1], batch_size=16, verbose=0)
    for _ in range(2):
        model.train_on_batch(x, x[:, :1])
    (said,) = (text for text in found if "train_on_batch" in text)
    assert "cannot join" in said


def _trains_other_data(ctx):
    import keras

    keras.utils.set_random_seed(3)
    if ctx.rank == 1:
        ctx.wait_for("begin", 60.0)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = _model(keras, 1, None)
    x = np.random.default_rng(ctx.rank).normal(size=(32, 6))
    if ctx.rank == 1:
        with pytest.raises(TfdistError, match=r"expected the same data as on .*values.*Seed"):
            model.fit(x, x[:, :1], batch_size=16, verbose=0)
        return None
    places = [_places(keras, ctx, "first")] if elastic_job().start_workers == 1 else []
    return model.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0, callbacks=places).history


@pytest.mark.long("1", covered_by="the other cases")
@pytest.mark.parametrize("start", [1, 2])
def test_a_worker_with_other_data_ends(start):
    with start_ranks(_trains_other_data, 2, env={"TFDIST_ELASTIC": f"1:2:{start}"}) as ranks:
        if start == 1:  # a job of one, which founds itself
            ranks.wait_for(0, "at", ("first", 2))
        ranks.send(1, "begin")
        if start == 1:
            ranks.send(0, "continue first", WITH_NEWCOMER)
        outcomes = ranks.join(60.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    assert len(outcomes[0].result["loss"]) == 3
