"""Local updates whose workers die, join and leave, against the same rounds in NumPy."""

from __future__ import annotations

import dataclasses
import json
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks
from support.training.models import RowCounter
from tfdist import rules
from tfdist.strategies._local_updates.elastic_round import ElasticRound

pytestmark = pytest.mark.timeout(240)
ROWS, BATCH, COLUMNS, RATE = 90, 10, 4, 0.05
STEPS = ROWS // BATCH


def rows() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, COLUMNS))
    return x, np.tanh(x @ np.arange(1.0, COLUMNS + 1))[:, None]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A worker kills itself, or tells itself to leave, at the end of a batch."""

    rank: int
    epoch: int
    batch: int
    number: int = signal.SIGKILL


@dataclasses.dataclass(frozen=True)
class Job:
    """A `fit`, which ends after the third or a later epoch with `until` workers, if not 0."""

    sync_every: int
    epochs: int
    rule: str = "ModelAveraging"
    options: tuple[tuple[str, object], ...] = ()
    faults: tuple[Fault, ...] = ()
    until: int = 0
    saves: bool = False

    def make_rule(self) -> rules.Rule:
        return {"ModelAveraging": rules.ModelAveraging, "BMUF": lambda: rules.BMUF(0.5, 1.0)}[
            self.rule
        ]()


class Course(keras.callbacks.Callback):
    """Suffers the faults of this worker, and notes logs."""

    def __init__(self, ctx, job):
        super().__init__()
        self._ctx, self._job = ctx, job
        self._epoch = 0
        self.logs = {}
        self.sizes = {}  # the number of workers in each step, by epoch and batch

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.sizes[self._epoch, batch] = self.model.distribute_strategy.elastic_job.size
        for fault in self._job.faults:
            if (fault.rank, fault.epoch, fault.batch) == (self._ctx.rank, self._epoch, batch):
                os.kill(os.getpid(), fault.number)

    def on_epoch_end(self, epoch, logs=None):
        self.logs[epoch] = logs["loss"], logs["mae"]
        sizes = {self.sizes.get((epoch, batch)) for batch in range(STEPS)}
        if epoch > 1 and sizes == {self._job.until}:
            self.model.stop_training = True


def train(ctx, job):
    keras.backend.set_floatx("float64")
    strategy = tfdist.LocalUpdateStrategy(job.sync_every, job.make_rule(), **dict(job.options))
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((COLUMNS,)), keras.layers.Dense(1, use_bias=False, name="linear")]
        )
        model.compile(keras.optimizers.SGD(RATE), "mse", metrics=["mae"])
    elastic = strategy.elastic_job
    course = Course(ctx, job)
    callbacks = [course]
    if job.saves:
        callbacks.append(keras.callbacks.BackupAndRestore(str(ctx.tmp_path / "backup")))
    data = tf.data.Dataset.from_tensor_slices(rows()).batch(BATCH)
    model.fit(
        data,
        epochs=job.epochs,
        verbose=0,
        callbacks=callbacks,
        validation_data=rows(),
        validation_batch_size=64,
    )
    return model.get_weights()[0], course.logs, elastic.size, elastic.recoveries, course.sizes


def initial() -> np.ndarray:
    keras.utils.set_random_seed(1)
    layer = keras.layers.Dense(1, use_bias=False, dtype="float64")
    layer.build((None, COLUMNS))
    return layer.get_weights()[0]


def expected(job: Job, members) -> tuple[np.ndarray, dict[int, tuple[float, float]]]:
    """The weights at the end, and the logs of each epoch.

    Args:
      job: the `fit`.
      members: takes the epoch and the first batch of a round; returns the number of workers that
        begin the round, and the ranks of the workers that end it.
    """
    x, y = rows()
    anchor, velocity, logs = initial(), np.zeros((COLUMNS, 1)), {}
    for epoch in range(job.epochs):
        sums, counted = np.zeros(2), 0
        for begin in range(0, STEPS, job.sync_every):
            size, ending = members(epoch, begin)
            share, ends = -(-BATCH // size), []
            for rank in ending:
                w, seen = anchor, 0
                for batch in range(begin, min(begin + job.sync_every, STEPS)):
                    first = batch * BATCH + rank * share
                    mine = slice(first, min(first + share, (batch + 1) * BATCH))
                    error = x[mine] @ w - y[mine]
                    sums += np.sum(error**2), np.sum(np.abs(error))
                    w = w - RATE * 2 / len(error) * x[mine].T @ error
                    seen += len(error)
                ends.append((seen, w))
                counted += seen
            mean = sum(n * w for n, w in ends) / sum(n for n, _ in ends)
            velocity = (0.5 if job.rule == "BMUF" else 0.0) * velocity + mean - anchor
            anchor = anchor + velocity
        logs[epoch] = tuple(sums / counted)
    return anchor, logs


def results_of(*outcomes) -> list:
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
    return [outcome.result for outcome in outcomes]


def check(results, job: Job, members) -> None:
    weights, logs = expected(job, members)
    for found, seen, *_ in results:
        np.testing.assert_allclose(found, weights, rtol=0, atol=1e-12)
        assert all(values == results[0][1].get(epoch, values) for epoch, values in seen.items())
        for epoch, values in seen.items():
            np.testing.assert_allclose(values, logs[epoch], rtol=1e-12)


def test_a_killed_worker_costs_its_round():
    """The round ends without it, and is the mean of the others."""
    options = (("min_contributors", np.int64(2)),)
    job = Job(4, 3, options=options, faults=(Fault(2, 1, 5),))
    with start_ranks(train, 3, args=(job,), env={"TFDIST_ELASTIC": "1:3"}) as ranks:
        outcomes = ranks.join(timeout=60)
    for outcome in outcomes[:2]:
        assert "min_contributors=2 takes the place of the job's minimum of 1" in outcome.output
        assert f"worker {outcome.rank}: continues as rank {outcome.rank} of 2" in outcome.output
    results = results_of(*outcomes[:2])

    def members(epoch, begin):
        if (epoch, begin) < (1, 4):
            return 3, (0, 1, 2)
        return (3 if (epoch, begin) == (1, 4) else 2), (0, 1)

    check(results, job, members)
    assert [result[2:4] for result in results] == [(2, 1), (2, 1)]


@pytest.mark.long(covered_by="test_a_killed_worker_costs_its_round")
def test_a_worker_that_was_started_again_joins_between_rounds():
    """Rank 0 is killed, and comes back; BMUF's momentum equals the others'."""
    job = Job(4, 10_000, "BMUF", faults=(Fault(0, 1, 2),), until=3)
    with start_ranks(train, 3, args=(job,), env={"TFDIST_ELASTIC": "2:3"}) as ranks:
        ranks.wait_until(lambda: not ranks[0].alive, 60, "rank 0 is killed")
        ranks.restart(0)
        outcomes = ranks.join(timeout=60)
    results = results_of(*outcomes)
    sizes = results[1][4]
    assert sizes[2, 0] == 2 and results[0][2] == 3
    job = dataclasses.replace(job, epochs=1 + max(epoch for epoch, _ in sizes))

    def members(epoch, begin):
        if (epoch, begin) <= (1, 0):
            return 3, ((1, 2) if epoch == 1 else (0, 1, 2))
        return sizes[epoch, begin], range(sizes[epoch, begin])

    check(results, job, members)


@pytest.mark.long("at its end", covered_by="the other cases")
@pytest.mark.parametrize("batch", [1, STEPS - 1], ids=["within an epoch", "at its end"])
def test_a_worker_that_is_told_to_leave_ends_its_round(batch):
    job = Job(4, 4, faults=(Fault(1, 1, batch, signal.SIGTERM),))
    with start_ranks(train, 3, args=(job,), env={"TFDIST_ELASTIC": "2:3"}) as ranks:
        outcomes = ranks.join(timeout=60)
    assert outcomes[1].exit_code == tfdist.errors.Preempted.EXIT_CODE
    results = results_of(outcomes[0], outcomes[2])
    sizes = results[0][4]
    assert sizes[3, 0] == 2

    def members(epoch, begin):
        return sizes[epoch, begin], range(sizes[epoch, begin])

    check(results, job, members)


def train_and_lose_a_result(ctx, job):
    """Rank 1 fails after the collectives of the second round, which rank 0 has ended then."""
    if ctx.rank == 1:
        means = ElasticRound._weighted_means
        calls = []

        def failing(self, *args):
            def fail(*values):
                calls.append(self)
                if len(calls) == 2:
                    self._communicator.abort("made to fail")
                    raise tf.errors.UnavailableError(None, None, "made to fail")
                return values

            found = means(self, *args)
            return [
                tf.ensure_shape(passed, value.shape)
                for passed, value in zip(
                    tf.numpy_function(fail, found, [value.dtype for value in found]),
                    found,
                    strict=True,
                )
            ]

        ElasticRound._weighted_means = failing
    return train(ctx, job)


@pytest.mark.long(covered_by="test_a_killed_worker_costs_its_round")
def test_a_worker_that_misses_the_end_of_a_round_gets_it_from_the_others():
    job = Job(4, 2, "BMUF")
    env = {"TFDIST_ELASTIC": "2:2"}
    with start_ranks(train_and_lose_a_result, 2, args=(job,), env=env) as ranks:
        results = results_of(*ranks.join(timeout=60))
    check(results, job, lambda epoch, begin: (2, (0, 1)))
    assert [result[3] for result in results] == [1, 1]


@pytest.mark.long(
    covered_by=(
        "parallel/local_updates/test_resumed_local_updates.py, "
        "parallel/elastic/test_elastic_resume.py"
    )
)
def test_a_job_goes_on_from_its_backup(tmp_path):
    """All are killed within the second epoch, which begins anew."""
    faults = tuple(Fault(rank, 1, 5) for rank in range(2))
    job = Job(4, 3, faults=faults, saves=True)
    env = {"TFDIST_ELASTIC": "2:2"}
    with start_ranks(train, 2, args=(job,), env=env, tmp_path=tmp_path) as ranks:
        ranks.wait_until(lambda: not (ranks[0].alive or ranks[1].alive), 60, "both are killed")
    job = dataclasses.replace(job, faults=())
    with start_ranks(train, 2, args=(job,), env=env, tmp_path=tmp_path) as ranks:
        results = results_of(*ranks.join(timeout=60))
    assert all(set(result[1]) == {1, 2} for result in results)
    check(results, job, lambda epoch, begin: (2, (0, 1)))


@pytest.mark.parametrize(
    ("rule", "options", "environment", "message"),
    [
        (rules.EASGD(0.1), {}, "1:2", "all workers are equal .* received EASGD"),
        (rules.ADMM(1.0), {"min_contributors": 1}, "", "all workers are equal .* received ADMM"),
        (rules.StreamingDiLoCo(), {}, "1:2", "all workers are equal .* received StreamingDiLoCo"),
        (None, {"compression": "onebit"}, "1:2", "expected compression=None .* received OneBit"),
        (None, {"min_contributors": 0}, "", "None or 1 to 2, the number of workers .*, received 0"),
        (None, {"min_contributors": 3}, "", "None or 1 to 2, the number of workers .*, received 3"),
        (None, {"min_contributors": True}, "1:8", "None or 1 to 2, .*, received True"),
    ],
)
def test_refusals(rule, options, environment, message, monkeypatch):
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps({**cluster, "task": {"type": "worker", "index": 0}}))
    monkeypatch.setenv("TFDIST_ELASTIC", environment)
    with pytest.raises(ValueError, match=message):
        tfdist.LocalUpdateStrategy(4, rule, **options)


def train_with_statistics(ctx, job):
    """Adam's averaged slots, BatchNormalization's statistics, two steps an execution."""
    strategy = tfdist.LocalUpdateStrategy(job.sync_every, rules.DiLoCo(), slots="average")
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((COLUMNS,)),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=2)
    course = Course(ctx, job)
    model.fit(*rows(), batch_size=BATCH, epochs=job.epochs, verbose=0, callbacks=[course])
    values = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
    return values, course.logs, strategy.elastic_job.size


def test_statistics_and_slots_are_equal_after_a_loss():
    job = Job(3, 3, faults=(Fault(1, 1, 5),))
    env = {"TFDIST_ELASTIC": "1:3"}
    with start_ranks(train_with_statistics, 3, args=(job,), env=env) as ranks:
        outcomes = ranks.join(timeout=60)
    first, second = results_of(outcomes[0], outcomes[2])
    assert first[1:] == second[1:] and first[2] == 2
    for one, other in zip(first[0], second[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert set(first[1]) == {0, 1, 2} and first[1][2][0] < first[1][0][0]


class Evaluates(keras.callbacks.Callback):
    """Evaluates within a round, which sets the metrics to zero."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            self.model.evaluate(*rows(), verbose=0)


class Begins(keras.callbacks.Callback):
    """Checks that `fit` begins with some weights."""

    def __init__(self, weights):
        super().__init__()
        self._weights = weights

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            for found, expected in zip(self.model.get_weights(), self._weights, strict=True):
                np.testing.assert_array_equal(found, expected)


def train_twice(ctx, job):
    """Two models, one after the other; the second `fit` of the first has another optimizer."""
    keras.backend.set_floatx("float64")
    strategy = tfdist.LocalUpdateStrategy(job.sync_every, min_contributors=1)
    results = []
    for columns in (COLUMNS, COLUMNS - 1):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((columns,)), keras.layers.Dense(1)])
        x, y = rows()
        data = tf.data.Dataset.from_tensor_slices((x[:, :columns], y)).batch(BATCH)
        course = Course(ctx, job)
        for optimizer in (keras.optimizers.SGD, keras.optimizers.Adam):
            with strategy.scope():
                model.compile(optimizer(RATE), "mse", metrics=["mae", RowCounter()])
            begins = Begins(model.get_weights())
            callbacks = [begins, course, *([Evaluates()] if columns == COLUMNS else [])]
            history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history
            results += [*model.get_weights(), *history["loss"], *history["mae"]]
        assert columns == COLUMNS or history["rows"] == [ROWS] * 2
        job = dataclasses.replace(job, faults=())
    with strategy.scope():
        model.compile(model.optimizer, "mse", metrics=["mse"])
    results += model.fit(data, verbose=0).history["mse"]
    return results


@pytest.mark.long(covered_by="test_statistics_and_slots_are_equal_after_a_loss")
def test_other_models_and_optimizers_after_a_loss():
    """Rank 0 dies in the first `fit`, so the later ones begin with the state of rank 1."""
    job = Job(3, 2, faults=(Fault(0, 1, 4),))
    with start_ranks(train_twice, 3, args=(job,)) as ranks:
        outcomes = ranks.join(timeout=120)
    first, second = results_of(outcomes[1], outcomes[2])
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def be_refused(ctx):
    strategy = tfdist.LocalUpdateStrategy(2, min_contributors=1)

    def fit(layers, **options):
        with strategy.scope():
            model = keras.Sequential([keras.Input((COLUMNS,)), *layers, keras.layers.Dense(1)])
            model.compile("sgd", "mse", **options)
        return model

    with pytest.raises(ValueError, match="synchronize: expected a job with a fixed number"):
        strategy.synchronize()
    with pytest.raises(tfdist.errors.TfdistError, match="a training step outside of fit"):
        fit([]).train_on_batch(*rows())
    with pytest.raises(ValueError, match="expected a step without collectives"):
        fit([keras.layers.BatchNormalization(synchronized=True)]).fit(*rows(), verbose=0)

    class Own(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "doubled": 2 * self.metrics[0].result()}

    with strategy.scope():
        model = Own([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"results of metrics, received \['doubled'\], too"):
        model.fit(*rows(), verbose=0)


def test_steps_that_could_not_go_on_alone_are_refused():
    with start_ranks(be_refused, 2) as ranks:
        results_of(*ranks.join(timeout=60))


def train_in_a_loop(ctx):
    strategy = tfdist.LocalUpdateStrategy(2, min_contributors=1)
    with strategy.scope():
        variable = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([variable])
    with pytest.raises(ValueError, match="expected fit of Keras 3 .* custom loop"):
        strategy.run(lambda: optimizer.apply([tf.constant(1.0)], [variable]))


def test_a_custom_loop_is_refused():
    with start_ranks(train_in_a_loop, 2) as ranks:
        results_of(*ranks.join(timeout=60))


@pytest.mark.long(covered_by="single/elastic/test_membership_partition.py")
def test_too_few_workers_wait_and_end():
    options = (("min_contributors", 2),)
    job = Job(4, 3, options=options, faults=(Fault(1, 1, 5), Fault(2, 1, 6)))
    with start_ranks(train, 3, args=(job,), env={"TFDIST_RENDEZVOUS_TIMEOUT": "3"}) as ranks:
        outcome = ranks.join(timeout=120)[0]
    assert outcome.exception == "RendezvousTimeoutError"
    assert "at least 2" in outcome.message, outcome.message
