"""Reading and writing the shared variables outside of training steps."""

from __future__ import annotations

import logging
import re
import threading

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops.gen_resource_variable_ops import variable_shape

import tfdist
from support.ps_job import fit_dataset, meet, on_job, served
from support.training import models
from support.training.models import built_classifier, difference, normalized_classifier, slots
from tfdist.strategies._variables.server_variable import ServerVariable


def _adam():
    return built_classifier(keras.optimizers.Adam(0.01))


def _in_scope(build, **options):
    strategy = tfdist.ParameterServerStrategy(**options)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        return strategy, build()


@on_job(2)
def test_the_first_value_counts_for_all(ctx):
    """Both workers begin with other values; afterwards both have the same."""
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        variable = tf.Variable(np.full([3], 1.0 + ctx.rank, "float32"), name="v")
        own = tf.Variable(ctx.rank, synchronization=tf.VariableSynchronization.ON_READ)
    assert isinstance(variable, ServerVariable) and not isinstance(own, ServerVariable)
    value = variable.numpy()
    assert value[0] in (1.0, 2.0)
    np.testing.assert_array_equal(value, [value[0]] * 3)
    meet(ctx, "read")
    assert own.numpy() == ctx.rank


@on_job(2)
def test_models_of_two_strategies_have_variables_of_their_own(ctx):
    if served():
        return
    keras.utils.set_random_seed(0)
    plain = _adam()
    expected = plain.get_weights()
    fit_dataset(4)(plain)
    trained = []
    for build in (lambda: built_classifier(keras.optimizers.SGD(0.1)), _adam):
        keras.utils.clear_session()  # so layers have the same names again
        _, model = _in_scope(build, mode="sync")
        assert difference(model.get_weights(), expected) == 0
        meet(ctx, f"begun {len(trained)}")
        fit_dataset(4)(model)
        trained.append(model.get_weights())
    assert difference(trained[1], plain.get_weights()) <= 1e-5
    assert difference(trained[0], trained[1]) > 0.001


@on_job(2)
def test_the_chief_writes_for_all(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], name="v")
    meet(ctx, "made")
    if ctx.rank == 1:
        variable.assign([-1.0, -1.0])  # lasts until it pulls, which the next read does
    meet(ctx, "ignored")
    np.testing.assert_array_equal(variable, [1.0, 2.0])
    meet(ctx, "unchanged")
    if ctx.rank == 0:
        variable.assign([5.0, 6.0])
        variable.assign_add([1.0, 1.0])
        variable.scatter_update(tf.IndexedSlices([9.0], [1]))
    meet(ctx, "written")
    np.testing.assert_array_equal(variable, [6.0, 9.0])


@on_job(2)
def test_a_worker_that_starts_late_takes_what_is_there(ctx):
    if served():
        return
    if ctx.rank == 0:
        _, model = _in_scope(_adam)
        fit_dataset(5)(model)
        trained = model.get_weights()
        meet(ctx, "trained")
        meet(ctx, "pulled")
        assert difference(model.get_weights(), trained) == 0
        return
    meet(ctx, "trained")
    _, model = _in_scope(_adam)
    # A script would do this in every worker. Here it must not undo the chief's training.
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    assert np.abs(model.get_weights()[0]).max() > 0.01
    assert int(model.optimizer.iterations.numpy()) == 3  # of five batches, dealt to two workers
    meet(ctx, "pulled")


@on_job(1)
def test_a_saved_model_has_the_servers_slots(ctx, tmp_path):
    if served():
        return
    strategy, model = _in_scope(_adam)
    fit_dataset(7)(model)
    assert [on for _, on in strategy.extended.optimizer_places.values()] == [True]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not any(isinstance(v.value, ServerVariable) for v in loaded.variables)
    assert difference(loaded.get_weights(), model.get_weights()) == 0
    assert difference(slots(loaded), slots(model)) == 0
    assert np.abs(slots(loaded)[2]).max() > 0  # Adam's first momentum

    # It continues like the other one, here and with servers.
    fit_dataset(7)(loaded)
    fit_dataset(7)(model)
    assert difference(loaded.get_weights(), model.get_weights()) <= 1e-6
    with strategy.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    assert difference(slots(again)[:1], [7]) == 0
    fit_dataset(7)(again)
    assert difference(again.get_weights(), model.get_weights()) <= 1e-6
    assert difference(slots(again), slots(model)) <= 1e-6


@on_job(1)
def test_checkpoint_in_and_out(ctx, tmp_path):
    """tf.train.Checkpoint from a plain process into servers, and back."""
    if served():
        return
    keras.utils.set_random_seed(0)
    plain = _adam()
    fit_dataset(4)(plain)
    saved = tf.train.Checkpoint(model=plain).save(str(tmp_path / "plain"))
    fit_dataset(4)(plain)

    _, model = _in_scope(_adam)
    fit_dataset(2)(model)
    tf.train.Checkpoint(model=model).restore(saved).assert_consumed()
    assert int(model.optimizer.iterations.numpy()) == 4
    fit_dataset(4)(model)
    assert difference(model.get_weights(), plain.get_weights()) <= 1e-6
    assert difference(slots(model), slots(plain)) <= 1e-6

    saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "served"))
    back = _adam()
    back.optimizer.build(back.trainable_variables)
    tf.train.Checkpoint(model=back).restore(saved).assert_consumed()
    assert difference(back.get_weights(), model.get_weights()) == 0
    assert difference(slots(back), slots(model)) == 0


@on_job(1)
def test_restore_before_the_variables_exist(ctx, tmp_path):
    if served():
        return
    saved = tf.train.Checkpoint(v=tf.Variable([3.0, 4.0])).save(str(tmp_path / "one"))
    strategy = tfdist.ParameterServerStrategy()
    holder = tf.train.Checkpoint()
    holder.restore(saved)
    with strategy.scope():
        holder.v = tf.Variable([0.0, 0.0])
    np.testing.assert_array_equal(holder.v, [3.0, 4.0])
    # The servers have it too.
    strategy.run(lambda: holder.v.assign_add([1.0, 1.0]))
    np.testing.assert_array_equal(holder.v, [4.0, 5.0])


@on_job(1)
def test_export_has_none_of_our_ops(ctx, tmp_path):
    if served():
        return
    _, model = _in_scope(normalized_classifier)
    fit_dataset(3)(model)
    features = models.examples(10)[0]
    expected = model.predict(features, verbose=0)
    model.export(str(tmp_path / "export"), verbose=False)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    for name in ("export", "saved"):
        assert b"Tfdist" not in (tmp_path / name / "saved_model.pb").read_bytes()
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        (served_outputs,) = serve(tf.constant(features)).values()
        assert difference([served_outputs], [expected]) <= 1e-6


@on_job(1)
def test_shapes_are_known_during_a_pull(ctx):
    """The gradient of tf.while_loop reads the shapes of variables without waiting for the pull."""
    if served():
        return
    rows = 4_000_000
    strategy, variable = _in_scope(lambda: tf.Variable(tf.zeros([rows])))
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])
    train = tf.function(lambda: strategy.run(lambda: optimizer.apply([tf.ones([rows])])))
    train()
    shapes, done = set(), threading.Event()

    def read_shapes():
        while not done.is_set():
            shapes.add(int(variable_shape(variable.handle)[0]))

    reader = threading.Thread(target=read_shapes)
    reader.start()
    for _ in range(40):
        train()
    done.set()
    reader.join()
    assert shapes == {rows}
    assert variable[0] == -41.0


@on_job(1)
def test_callbacks(ctx):
    """LearningRateScheduler, ReduceLROnPlateau and EarlyStopping work as in one process."""
    if served():
        return
    callbacks = keras.callbacks

    def fit(model):
        return model.fit(
            *models.examples(256),
            batch_size=64,
            shuffle=False,
            epochs=6,
            validation_data=models.examples(100),
            callbacks=[
                callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9),
                callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.1),
                callbacks.EarlyStopping("val_loss", min_delta=0.01, patience=3),
            ],
            verbose=0,
        )

    keras.utils.set_random_seed(0)
    alone = built_classifier(keras.optimizers.SGD(0.5, momentum=0.9))
    expected = fit(alone).history
    _, model = _in_scope(lambda: built_classifier(keras.optimizers.SGD(0.5, momentum=0.9)))
    history = fit(model).history
    assert len(set(np.round(history["learning_rate"], 6))) > 3
    for name in expected:
        assert difference([history[name]], [expected[name]]) <= 1e-5, name
    assert difference(model.get_weights(), alone.get_weights()) <= 1e-5


@on_job(1)
def test_evaluate_sees_what_another_model_has_trained(ctx):
    """evaluate and predict pull first: two models share layers, and one of them is trained."""
    if served():
        return
    strategy, model = _in_scope(_adam)
    with strategy.scope():
        twin = keras.Sequential(model.layers)
        twin.compile(loss=model.loss, metrics=["accuracy"])
        twin.build((None, models.COLUMNS))
    data = models.dataset(200, 64)
    before = twin.evaluate(data, verbose=0)
    fit_dataset(20)(model)
    after = twin.evaluate(data, verbose=0)
    assert after[0] < before[0] - 0.01
    assert difference(after, model.evaluate(data, verbose=0)) == 0


class _Messages(logging.Handler):
    """Keeps the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _server_warned(results) -> None:
    (texts,) = [r for r in results if r is not None]
    (warning,) = [t for t in texts if "trains" in t]
    assert re.search(
        r"ps 0: rank [01] trains .* 3 more shards, none of which rank [01] has: names", warning
    )


@on_job(2, check=_server_warned)
def test_workers_that_train_alone_are_noticed(ctx):
    """A layer that only one worker makes gives its later layers other names."""
    messages = _Messages()
    logging.getLogger("tfdist.ps").addHandler(messages)
    if served():
        return messages.texts
    if ctx.rank == 0:
        keras.layers.Dense(1)
        keras.Sequential([])
    _, model = _in_scope(lambda: built_classifier(keras.optimizers.SGD(0.1)))
    fit_dataset(4)(model)
    return None
