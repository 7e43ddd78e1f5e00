"""`fit` of tf_keras is elastic as in Keras 3; see test_elastic_faults.py."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.elastic.elastic_faults import Fault, Faults, check, suffer
from support.elastic.elastic_training import STEPS, Fit
from support.processes.ranks import start_ranks
from support.processes.self_signal import signal_self
from tfdist.keras.callback import Callback

pytestmark = pytest.mark.timeout(240)

ROWS, BATCH, EPOCHS = 70, 16, 3  # the last batch of an epoch has 6 rows


@pytest.mark.long(covered_by="test_a_newcomer_reads_on_where_the_members_are")
def test_datasets_with_validation(tmp_path):
    """Rank 0 is killed in the middle of an epoch, another one in a validation, one leaves."""
    fit = Fit(validates=True, saves=True, library="tf_keras")
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 0, "batch end", epoch=1, batch=2)),
            Faults(Fault("kill", 2, "validation", epoch=0, batch=0), restarts="never"),
            Faults(Fault("leave", 0, "batch end", epoch=0, batch=STEPS - 1), restarts="later"),
        ],
        tmp_path,
        workers=3,
    )
    check(fit, course, results)
    assert len(results) == 2


def examples():
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 5))
    return x, np.tanh(x.sum(axis=1, keepdims=True))


class Batches(tf_keras.utils.Sequence):
    """Batches whose targets the ends of epochs change."""

    def __init__(self):
        self.ended = 0

    def __len__(self):
        return -(-ROWS // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        x, y = examples()
        return x[rows], y[rows] + 0.1 * self.ended

    def on_epoch_end(self):
        self.ended += 1


class OwnStep(tf_keras.Model):
    """Its step logs a sum over the rows of a batch besides a metric."""

    def __init__(self):
        super().__init__()
        self.first = tf_keras.layers.Dense(6, activation="tanh")
        self.second = tf_keras.layers.Dense(1)
        self.error = tf_keras.metrics.Mean(name="error")

    @property
    def metrics(self):
        return [self.error]

    def call(self, x):
        hidden = self.first(x)
        # AutoGraph converts this branch.
        if tf.size(hidden) > 0:
            hidden = 2.0 * hidden
        return self.second(hidden)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = (self(x) - y) ** 2
            loss = tf.reduce_sum(errors) / BATCH
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.error.update_state(errors)
        return {"error": self.error.result(), "total": tf.reduce_sum(errors)}


def dense_model(optimizer, **compiling):
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.Dense(6, activation="tanh", kernel_regularizer="l2"),
            layers.BatchNormalization(synchronized=True),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", metrics=["mae"], **compiling)
    return model


def scaling_model():
    inner = tf_keras.optimizers.Adam(0.02, global_clipnorm=0.5, use_ema=True)
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(inner, dynamic_growth_steps=3)
    return dense_model(optimizer, steps_per_execution=3)


def own_step_model():
    model = OwnStep()
    model.compile(tf_keras.optimizers.SGD(0.05, momentum=0.9))
    return model


def arrays():
    x, y = examples()
    return {"x": x, "y": y, "batch_size": BATCH}


MODES = {
    "loss scale and several steps of one execution": (scaling_model, arrays),
    "legacy optimizer and a Sequence": (
        lambda: dense_model(tf_keras.optimizers.legacy.Adam(0.02)),
        lambda: {"x": Batches(), "shuffle": False},
    ),
    "own step": (own_step_model, arrays),
}


class Signal(Callback):
    """Sends this process a signal after a batch; both numbers count from 0."""

    def __init__(self, number, epoch, batch):
        super().__init__()
        self._signals = [number]
        # A function, which members do not take over from rank 0.
        self._is_due = lambda *place: place >= (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._signals and self._is_due(self._epoch, batch):
            signal_self(self._signals.pop())


def fit(mode, scope, callbacks=()):
    make, data = MODES[mode]
    tf_keras.utils.set_random_seed(4)
    with scope:
        model = make()
    monitored = "error" if mode == "own step" else "mae"
    stop = tf_keras.callbacks.EarlyStopping(monitored, patience=1, restore_best_weights=True)
    history = model.fit(**data(), epochs=EPOCHS, verbose=0, callbacks=[stop, *callbacks])
    return model, history.history


def weights_of(model):
    """The weights; tf_keras counts metrics that are attributes of a model among them."""
    metrics = {variable.ref() for metric in model.metrics for variable in metric.variables}
    return [weight.numpy() for weight in model.weights if weight.ref() not in metrics]


def train_and_lose_one_worker_in_each_mode(ctx):
    tf_keras.backend.set_floatx("float64")
    strategy = tfdist.MultiWorkerMirroredStrategy()
    for number, mode in enumerate(MODES):
        victim = [Signal(signal.SIGKILL, 1, 1)] if ctx.rank == number else []
        model, logs = fit(mode, strategy.scope(), victim)
        assert strategy.elastic_job.size == ctx.size - 1 - number, mode
        assert strategy.elastic_job.recoveries >= number + 1, mode
        predicted = model.predict(examples()[0], batch_size=20, verbose=0)
        expected, expected_logs = fit(mode, tf.distribute.get_strategy().scope())
        for own, other in zip(weights_of(model), weights_of(expected), strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-10, err_msg=mode)
        assert logs.keys() == expected_logs.keys(), mode
        for name, values in expected_logs.items():
            np.testing.assert_allclose(logs[name], values, rtol=1e-8, err_msg=f"{mode}: {name}")
        np.testing.assert_allclose(
            predicted, expected.predict(examples()[0], verbose=0), rtol=0, atol=1e-10, err_msg=mode
        )
    return strategy.is_chief


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_modes.py")
def test_each_mode_goes_on():
    with start_ranks(
        train_and_lose_one_worker_in_each_mode, 4, env={"TFDIST_ELASTIC": "1:4"}
    ) as ranks:
        outcomes = ranks.join(timeout=120)
    signals = [outcome.signal for outcome in outcomes[:3]]
    assert signals == [signal.SIGKILL] * 3, "\n".join(o.describe() for o in outcomes)
    assert outcomes[3].ok, outcomes[3].describe()
    # The last one has become rank 0.
    assert outcomes[3].result is True


class Rows(tf_keras.utils.Sequence):
    """The rows of a unit matrix."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.eye(12)[4 * index : 4 * (index + 1)], np.zeros(4)


def generated():
    while True:
        yield from (Rows()[index] for index in range(3))


# Of no seed; of a generator that cannot be shuffled a newcomer reads what it leaves out.
LEDGERS = {
    "arrays": lambda: {"x": np.eye(12), "y": np.zeros(12), "batch_size": 4},
    "arrays in batches": lambda: {
        "x": np.eye(12),
        "y": np.zeros(12),
        "batch_size": 4,
        "shuffle": "batch",
    },
    "sequence": lambda: {"x": Rows()},
    "generator": lambda: {"x": generated(), "steps_per_epoch": 3},
}


class KilledOnce(Callback):
    """Rank 1 kills itself in the second epoch; `fit` ends two epochs after it has come back."""

    def __init__(self, ctx, job):
        super().__init__()
        self._ctx = ctx
        self._job = job
        # Newcomers receive numbers.
        self._epoch = -1
        self.was_smaller = False
        self.last_epoch = -1

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        mark = self._ctx.tmp_path / "killed"
        if self._ctx.rank == 1 and self._epoch == 1 and batch == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch, logs=None):
        self.was_smaller |= self._job.size == 1
        if self.was_smaller and self._job.size == 2 and self.last_epoch < 0:
            self.last_epoch = epoch + 2
        if epoch == self.last_epoch:
            self.model.stop_training = True


def count_rows(ctx, kind):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Input((12,)),
                tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )
        # Each weight counts how often its row was trained.
        model.compile(tf_keras.optimizers.SGD(4.0), lambda _, output: -output[:, 0])
    callback = KilledOnce(ctx, strategy.elastic_job)
    model.fit(**LEDGERS[kind](), epochs=100_000, verbose=0, callbacks=[callback])
    return callback.last_epoch + 1, model.get_weights()[0][:, 0].tolist()


# Data that is opened once, and once an epoch.
@pytest.mark.long("sequence", covered_by="the other cases")
@pytest.mark.long("arrays in batches", "generator", covered_by="the other cases")
@pytest.mark.parametrize("kind", LEDGERS)
def test_a_newcomer_reads_on_where_the_members_are(kind, tmp_path):
    env = {"TFDIST_ELASTIC": "1:2"}
    with start_ranks(count_rows, 2, args=(kind,), env=env, tmp_path=tmp_path) as ranks:
        ranks.wait_until(lambda: not ranks[1].alive, 60.0, "the end of rank 1")
        ranks.restart(1)
        outcomes = ranks.join(timeout=100)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        epochs, counts = outcome.result
        assert epochs > 3 and counts == [epochs] * 12


def go_on_from_backup(ctx, data, save_freq, number):
    tf_keras.backend.set_floatx("float64")
    strategy = tfdist.MultiWorkerMirroredStrategy()
    tf_keras.utils.set_random_seed(4)
    with strategy.scope():
        model = dense_model(tf_keras.optimizers.AdamW(0.02))
        model.build((None, 5))
    callbacks = [
        tf_keras.callbacks.BackupAndRestore(
            str(ctx.tmp_path / "backup"), save_freq, delete_checkpoint=False
        )
    ]
    if number == signal.SIGKILL:
        # Rank 1 becomes rank 0, and replaces the backup of the other one, if there is one.
        callbacks.append(Signal(number, ctx.rank, 3 - ctx.rank))
    elif number == signal.SIGTERM:
        callbacks.append(Signal(number, 1, 1))
    history = model.fit(**data(), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return model.get_weights(), history.epoch


def fit_alone(ctx, data):
    tf_keras.backend.set_floatx("float64")
    tf_keras.utils.set_random_seed(4)
    model = dense_model(tf_keras.optimizers.AdamW(0.02))
    model.build((None, 5))
    model.fit(**data(), epochs=EPOCHS, verbose=0)
    return model.get_weights()


def shuffled_dataset():
    rows = tf.data.Dataset.from_tensor_slices(examples()).shuffle(ROWS, seed=5)
    return {"x": rows.batch(BATCH)}


@pytest.mark.long(covered_by="test_a_newcomer_reads_on_where_the_members_are")
@pytest.mark.parametrize(
    ("data", "save_freq", "number"),
    [
        (shuffled_dataset, "epoch", signal.SIGKILL),
        (shuffled_dataset, "epoch", signal.SIGTERM),
        (arrays, 3, signal.SIGKILL),
    ],
    ids=["dataset-killed", "dataset-preempted", "arrays-killed"],
)
def test_a_new_job_goes_on_from_the_backup(data, save_freq, number, tmp_path):
    with start_ranks(fit_alone, 1, args=(data,)) as ranks:
        (alone,) = ranks.join(timeout=60)
    assert alone.ok, alone.describe()
    env = {"TFDIST_ELASTIC": "1:2"}
    for sent in (number, None):
        args = (data, save_freq, sent)
        with start_ranks(go_on_from_backup, 2, args=args, env=env, tmp_path=tmp_path) as ranks:
            outcomes = ranks.join(timeout=60)
        if sent == signal.SIGKILL:
            assert [outcome.signal for outcome in outcomes] == [sent] * 2
        elif sent == signal.SIGTERM:
            assert [outcome.exit_code for outcome in outcomes] == [128 + sent] * 2
        # The newest one, and the one before it.
        assert 1 <= len(list(tmp_path.glob("backup/chief/ckpt-*.index"))) <= 2
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        weights, epochs = outcome.result
        assert epochs == [1, 2]
        for own, other in zip(weights, alone.result, strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-10)


class OwnFunction(tf_keras.Sequential):
    """Makes the function that trains by itself."""

    def make_train_function(self, force=False):
        return lambda iterator: {}


def refuse_what_is_not_elastic(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    x, y = examples()
    with strategy.scope():
        model = dense_model("sgd")
        others = {
            "run_eagerly=False": dense_model("sgd", run_eagerly=True),
            "jit_compile=False": dense_model("sgd", jit_compile=True),
            "a number as steps_per_execution": dense_model("sgd", steps_per_execution="auto"),
        }
        own = OwnFunction([tf_keras.layers.Dense(1)])
        own.compile("sgd", "mse")
    for expected, other in others.items():
        with pytest.raises(ValueError, match=f"expected {expected}"):
            other.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="received OwnFunction, which makes another one"):
        own.fit(x, y, verbose=0)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    with pytest.raises(ValueError, match="distributed already"):
        model.fit(strategy.experimental_distribute_dataset(data), steps_per_epoch=2, verbose=0)
    with pytest.raises(ValueError, match="read in the same order.*shuffle has no seed"):
        model.fit(data.shuffle(3), verbose=0)
    ctx.barrier("refused")


def test_what_is_not_elastic_is_refused():
    with start_ranks(refuse_what_is_not_elastic, 1, env={"TFDIST_ELASTIC": "1:1"}) as ranks:
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
