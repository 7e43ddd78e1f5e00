"""Each repair of Keras for the replicas of one process is still needed."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.optimizers import base_optimizer
from tensorflow.python.distribute.input_lib import DistributedDataset

from support.training import keras_repairs, models, scope_cases
from support.training.models import built_classifier, difference
from tfdist.data.draws import drawn

BRANCH_OF_AVERAGES = "_backend_maybe_overwrite_model_variables"


@pytest.fixture
def undo(strategy, monkeypatch):
    """Undoes a repair for one test; the strategy has installed it."""
    return functools.partial(
        keras_repairs.without,
        set_attribute=monkeypatch.setattr,
        delete_attribute=monkeypatch.delattr,
    )


def _model(strategy, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(**options))
    return model


@pytest.mark.long("central-*", covered_by="the other cases")
@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}],
    ids=["accumulation", "moving_average"],
)
def test_replicas_cannot_meet_in_a_branch(strategy, undo, options):
    if "use_ema" in options and hasattr(base_optimizer.BaseOptimizer, BRANCH_OF_AVERAGES):
        return  # Keras 3.16 branches outside of the replicas
    if hasattr(base_optimizer, "ops"):
        undo("branch_before_replicas")
        assert base_optimizer.ops is keras.src.ops
    else:
        undo("branch_of_the_backend_before_replicas")
        assert base_optimizer.backend is keras.src.backend
    with pytest.raises(RuntimeError, match="merge_call|cross-replica context"):
        _model(strategy, **options).fit(models.dataset(64, 32), verbose=0)


@pytest.mark.parametrize("kind", ["central"], indirect=True)
def test_accumulators_lose_gradients(strategy, undo):
    def fit():
        model = _model(strategy, learning_rate=0.1, gradient_accumulation_steps=2)
        model.fit(models.dataset(128, 32), verbose=0)
        return model.get_weights()

    expected = fit()
    undo("accumulate_all_gradients")
    assert difference(fit(), expected) > 1e-3


@pytest.mark.long("central", covered_by="the other cases")
def test_a_replica_without_rows_logs_nan(strategy, undo):
    def fit():
        with strategy.scope():
            model = built_classifier("sgd", run_eagerly=True)
        return model.fit(models.dataset(9, 8), verbose=0).history["loss"]

    assert np.isfinite(fit()).all()
    undo("reduce_no_rows")
    assert np.isnan(fit()).all()


def test_replicas_share_the_losses_of_layers(strategy, undo):
    """They meet in a synchronized normalization, which follows the layer that adds a loss."""

    def logs(of):
        keras.utils.set_random_seed(0)
        with of.scope():
            inputs = keras.Input((models.COLUMNS,))
            hidden = keras.layers.ActivityRegularization(l2=0.1)(inputs)
            hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
            model = keras.Model(inputs, keras.layers.Dense(models.CLASSES)(hidden))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1), loss)
        return model.fit(models.dataset(29, 7), verbose=0).history["loss"][0]

    expected = logs(tf.distribute.get_strategy())
    assert abs(logs(strategy) - expected) <= 1e-5
    undo("note_replica")
    undo("own_losses")
    undo("clear_own_losses")
    assert abs(logs(strategy) - expected) > 1e-2


def _step_of_an_optimizer_made_outside(strategy):
    with strategy.scope():
        model = built_classifier("sgd")
    variables = model.trainable_variables
    optimizer = keras.optimizers.Adam()
    optimizer.build(variables)
    strategy.run(lambda: optimizer.apply([tf.zeros_like(v.value) for v in variables], variables))
    return optimizer


@pytest.mark.long("central", covered_by="the other cases")
def test_an_optimizer_built_outside_the_scope_counts_every_replica(strategy, undo):
    undo("refuse_variables_of_no_strategy")
    assert _step_of_an_optimizer_made_outside(strategy).iterations.numpy() == 2


@pytest.mark.long("central", covered_by="the other cases")
def test_an_optimizer_built_outside_the_scope_is_refused(strategy):
    with pytest.raises(ValueError, match="optimizer 'adam.*' was made outside its scope"):
        _step_of_an_optimizer_made_outside(strategy)


def test_a_model_built_outside_has_variables_of_no_strategy(strategy, undo):
    undo("build_in_scope_of_model")
    with pytest.raises(ValueError, match="kernel' was made outside its scope"):
        scope_cases.trained("called outside", strategy.scope)


def test_an_optimizer_of_a_name_is_made_outside_the_scope(strategy, undo):
    undo("compile_in_scope_of_model")
    undo("build_from_local_batch")  # which adopts the optimizers that a model has as attributes
    with pytest.raises(RuntimeError, match=r"Mixing different tf\.distribute\.Strategy objects"):
        scope_cases.trained("compiled outside", strategy.scope)


@pytest.mark.parametrize("kind", ["central"], indirect=True)
def test_replicas_cannot_make_the_variables_of_predict(strategy, undo):
    with strategy.scope():
        model = scope_cases.lazy(keras)
    undo("build_before_prediction")
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="as a Python `bool`"):
        model.predict(scope_cases.rows()[0], verbose=0)


class _Slices(keras.utils.PyDataset):
    """Yields parts of an array, aligned so that TensorFlow shares their memory with NumPy."""

    ROWS = 32

    def __init__(self):
        super().__init__()
        memory = np.zeros(4 * 4 * self.ROWS + 64, "uint8")
        start = -memory.ctypes.data % 64
        self.rows = memory[start : start + 4 * 4 * self.ROWS].view("float32").reshape(-1, 1)
        self.rows[:] = np.arange(4 * self.ROWS)[:, np.newaxis] / 100

    def __len__(self):
        return 4

    def __getitem__(self, i):
        rows = self.rows[i * self.ROWS : (i + 1) * self.ROWS]
        return rows, rows


def _changed_by_fit(strategy) -> float:
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        # Keras 3.16 reads a batch by itself, where a step is a call.
        model.compile("sgd", "mse", steps_per_execution=2)
    data = _Slices()
    before = data.rows.copy()
    # A batch's memory is reused only if no other thread still holds the batch.
    model.fit(data, epochs=10, verbose=0)
    return difference([data.rows], [before])


@pytest.mark.long("central", covered_by="the other cases")
def test_arrays_that_python_yields_are_left_alone(strategy):
    assert _changed_by_fit(strategy) == 0


@pytest.mark.long("central", covered_by="the other cases")
def test_arrays_that_python_yields_are_overwritten(strategy, undo):
    undo("copy_what_python_yields")
    assert _changed_by_fit(strategy) > 0


@pytest.mark.long("central", covered_by="the other cases")
def test_predict_on_batch_returns_every_row_once(strategy, undo):
    model = _model(strategy)
    features, _ = models.examples(7)
    predicted = model.predict_on_batch(features)
    assert difference([predicted], [model.predict(features, verbose=0)]) <= 1e-6
    undo("predict_on_batch_once")
    assert model.predict_on_batch(features).shape == (14, models.CLASSES)


@pytest.mark.long("central", covered_by="the other cases")
def test_logs_of_a_batch_are_means_of_metrics(strategy, undo):
    undo("log_metrics_of_all_replicas")
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
    )
    model = _model(strategy, learning_rate=0.0)
    rows = 64 + 33  # split 32 + 32 and 17 + 16
    history = model.fit(models.dataset(rows, 64), verbose=0, callbacks=[record]).history
    assert abs(seen[-1] - history["loss"][0]) > 1e-6
    assert np.isfinite(seen[-1])


def _openings(strategy, monkeypatch, data, **options) -> int:
    """How often `fit` opens its data in three epochs."""
    opened = []
    iterate = DistributedDataset.__iter__
    monkeypatch.setattr(
        DistributedDataset, "__iter__", lambda self: opened.append(1) or iterate(self)
    )
    model = _model(strategy)
    opened.clear()
    model.fit(*data, epochs=3, verbose=0, **options)
    monkeypatch.setattr(DistributedDataset, "__iter__", iterate)
    return len(opened)


@pytest.mark.long("central", covered_by="the other cases")
def test_arrays_are_opened_once_an_epoch(strategy, undo, monkeypatch):
    arrays = models.examples(64)
    assert _openings(strategy, monkeypatch, arrays, batch_size=32) == 3
    # Two batches of four in each epoch: the third epoch has to open the arrays again.
    part = {"batch_size": 16, "steps_per_epoch": 2}
    assert _openings(strategy, monkeypatch, arrays, **part) == 2
    undo("open_arrays_once_an_epoch")
    assert _openings(strategy, monkeypatch, arrays, batch_size=32) == 6


def test_datasets_are_opened_once_and_draw_as_often_as_in_keras_alone(strategy, monkeypatch):
    data = models.dataset(64, 16).shuffle(4, seed=1)
    assert _openings(strategy, monkeypatch, (data,)) == 3
    assert drawn([data]) == [6]
    # Its orders are drawn while it is read: Keras's way.
    twice = models.dataset(64, 16).shuffle(4, seed=1).shuffle(4, seed=2)
    assert _openings(strategy, monkeypatch, (twice,)) == 6
    assert drawn([twice]) == [6, 3]


@pytest.mark.parametrize("kind", ["mirrored"], indirect=True)
def test_variables_of_replicas_have_no_numbers(strategy, undo):
    on_read = {
        "trainable": False,
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation.SUM,
    }
    with strategy.scope():
        zero, total = tf.Variable(0.0), tf.Variable(0.0, **on_read)
    assert np.asarray(total) == 0
    undo("read_as_float")
    undo("read_as_int")
    undo("read_as_complex")
    for kind in (float, int, complex):
        with pytest.raises(TypeError, match="MirroredVariable"):
            kind(zero)
    undo("read_as_array")
    with pytest.raises(ValueError, match="not producing an array"):
        np.asarray(total)


def _fit_without_weights(strategy):
    rows = models.dataset(64, 32).map(lambda x, y: (x, y, None))
    with strategy.scope():
        model = built_classifier("sgd", steps_per_execution=2)
    return model.fit(rows, verbose=0).history["loss"]


@pytest.mark.parametrize("kind", ["mirrored"])  # which alone makes batches of no rows
def test_none_cannot_be_split(strategy, undo):
    assert np.isfinite(_fit_without_weights(strategy)).all()
    undo("split_what_is_none")
    with pytest.raises(AttributeError, match="NoneTensorSpec"):
        _fit_without_weights(strategy)


@pytest.mark.parametrize("kind", ["mirrored"])
def test_none_is_no_tensor_of_an_optional(strategy, undo):
    undo("hold_none_in_an_optional")
    with pytest.raises(TypeError, match="OptionalFromValue"):
        _fit_without_weights(strategy)
