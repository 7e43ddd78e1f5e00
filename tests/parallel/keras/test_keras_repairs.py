"""Each repair in tfdist/keras is still needed: without it, this Keras fails in the known way.

A test that fails here, because the failure is gone, shows which repair can be deleted.
"""

from __future__ import annotations

import logging
import os
import sys
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import BackupAndRestore, ModelCheckpoint
from keras.optimizers import LossScaleOptimizer

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.keras_repairs import repaired, replacements_of, without
from support.training.models import built_classifier
from tfdist.errors import UnsupportedKerasError
from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.keras import FOR_TF_KERAS, registry
from tfdist.strategies._base import StrategyBase


def _data():
    return models.dataset(64 * 4, 64)


def _built_classifier(strategy, optimizer="sgd", *middle):
    with strategy.scope():
        model = built_classifier(optimizer, middle=middle)
    return model


@on_ranks(2)
def test_fit_reduces_the_whole_batch_over_the_workers(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    repaired = TensorFlowTrainer._maybe_symbolic_build
    without("build_from_local_batch")
    # Our own `reduce` also takes nested values and scalars with an axis; TensorFlow's does not.
    ours = StrategyBase.reduce
    del StrategyBase.reduce
    with pytest.raises(ValueError, match=r"Attempt to convert a value \(PerReplica"):
        _built_classifier(strategy).fit(_data(), verbose=0)
    TensorFlowTrainer._maybe_symbolic_build = repaired
    without("reduce_as_in_one_process")
    with pytest.raises(ValueError, match="Invalid reduction dimension 0"):
        _built_classifier(strategy).fit(_data(), verbose=0)
    # Even a `reduce` that takes all this cannot average strings.
    StrategyBase.reduce = ours
    without("build_from_local_batch")
    words = tf.data.Dataset.from_tensor_slices((["north", "south"] * 64, [0, 1] * 64)).batch(32)
    with strategy.scope():
        word = keras.Input((), dtype="string")
        number = keras.layers.StringLookup(vocabulary=["north", "south"])(word)
        table = keras.layers.Embedding(3, 1)(number)
        model = keras.Model(word, table)
        model.compile("sgd", "mse")
    with pytest.raises(Exception, match="string"):
        model.fit(words, verbose=0)


def _differ(results):
    (first, *others) = results
    assert all(np.max(np.abs(first - other)) > 1e-3 for other in others)


@on_ranks(2, check=_differ)
def test_moving_statistics_differ_between_workers(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    without("average_moving_statistics")
    normalization = keras.layers.BatchNormalization()
    model = _built_classifier(strategy, "sgd", normalization)
    model.fit(_data(), verbose=0)
    return normalization.moving_mean.numpy()


@on_ranks(2)
def test_moving_statistics_are_those_of_no_rows(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()

    def statistics():
        normalization = keras.layers.BatchNormalization()
        model = _built_classifier(strategy, "sgd", normalization)
        model.fit(models.dataset(65, 64), verbose=0)
        # Read on all workers, and reduced by them.
        return normalization.moving_mean.value.numpy()

    expected = statistics()
    without("keep_statistics_of_no_rows")
    found = statistics()
    others = tfdist.all_gather_object(float(np.abs(found - expected).max()))
    assert max(others) > 1e-4


@on_ranks(2)
def test_results_that_are_variables_cannot_be_reduced(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()

    def fit():
        with strategy.scope():
            model = built_classifier("sgd", metrics=[models.RowCounter()])
        return model.fit(_data(), validation_data=_data(), verbose=0).history

    logs = fit()
    assert (logs["rows"], logs["val_rows"]) == ([64 * 4], [64 * 4])
    without("reduce_as_in_one_process")
    with pytest.raises(ValueError, match="doesn't have device set"):
        fit()


@on_ranks(2)
def test_workers_disagree_on_overflow(ctx):
    options = tfdist.CommunicationOptions(timeout_seconds=2.0)
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    without("agree_on_overflow")
    model = _built_classifier(strategy, LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    features, labels = models.examples(64)
    features[40] = np.inf  # in rank 1's share
    # Rank 0 waits for gradients that rank 1 leaves out; rank 1 waits for it in the next collective.
    with pytest.raises(tf.errors.OpError):
        model.fit(features, labels, batch_size=64, shuffle=False, verbose=0)


@on_ranks(2)
def test_gradients_are_reduced_without_their_variables(ctx):
    options = tfdist.CommunicationOptions(compression=tfdist.compression.TopK(0.1, min_elements=1))
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    without("tell_whose_gradients_are_reduced")
    with strategy.scope():
        weight = tf.Variable(tf.zeros([20]))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])
    strategy.run(lambda: optimizer.apply([tf.ones([20])], [weight]))
    assert np.count_nonzero(weight) == 20  # with the repair: 2


@on_ranks(2)
def test_all_workers_write_checkpoints_and_backups(ctx, tmp_path):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    without("checkpoint_on_chief")
    without("back_up_on_chief")
    without("restore_from_chief")
    without("delete_on_chief")
    own = tmp_path / f"rank-{ctx.rank}"
    callbacks = [
        ModelCheckpoint(str(own / "checkpoint.keras")),
        BackupAndRestore(str(own / "backup"), delete_checkpoint=False),
    ]
    _built_classifier(strategy).fit(_data(), callbacks=callbacks, verbose=0)
    assert sorted(os.listdir(own)) == ["backup", "checkpoint.keras"]
    assert (own / "backup" / "latest.weights.h5").exists()


@on_ranks(1)
def test_xla_is_chosen_for_custom_ops(ctx):
    tfdist.init()
    model = built_classifier("sgd")
    # Where there is a GPU.
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    with mock.patch("tensorflow.config.list_physical_devices", lambda: [gpu]):
        assert not model._resolve_auto_jit_compile()
        without("keep_ops_from_xla")
        assert model._resolve_auto_jit_compile()


def _is_repaired(replacement):
    # Some are new attributes.
    current = getattr(replacement.owner, replacement.name, None)
    if callable(current):
        return replacement in replacements_of(current)
    return type(current).__module__.startswith("tfdist.")


@on_ranks(1)
def test_a_strategy_repairs_and_an_import_does_not(ctx):
    import tfdist.keras
    import tfdist.strategies

    repairs = repaired()
    assert len(repairs) > 40
    assert not any(_is_repaired(each) for each in repairs)
    tfdist.MultiWorkerMirroredStrategy()
    assert all(_is_repaired(each) for each in repairs)
    once = [getattr(each.owner, each.name) for each in repairs]
    tfdist.MultiWorkerMirroredStrategy()
    tfdist.keras.apply_repairs()
    assert once == [getattr(each.owner, each.name) for each in repairs]
    # Several repairs may wrap a function; each does so once.
    for function in once:
        wrappers = replacements_of(function)
        assert len(wrappers) == len(set(wrappers))


@on_ranks(1)
def test_tf_keras_may_be_imported_after_the_strategy_is_made(ctx):
    import tf_keras

    del sys.modules["tf_keras"]
    strategy = tfdist.MirroredStrategy()
    sys.modules["tf_keras"] = tf_keras  # as an import does
    fit = tf_keras.Model.fit
    assert not replacements_of(fit)
    for _ in range(2):
        with strategy.scope():
            hooks = replacements_of(tf_keras.Model.fit)
    assert hooks and len(hooks) == len(set(hooks))
    assert set(hooks) <= set(registry.registered(FOR_TF_KERAS))


def _warnings_of_repairs(version):
    """The log when the installed Keras, with another version number, is repaired twice."""
    from tfdist.keras import apply_repairs

    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("tfdist").addHandler(handler)
    keras.__version__ = version
    apply_repairs()
    apply_repairs()
    assert {record.levelno for record in records} == {logging.WARNING}
    return [record.getMessage() for record in records]


@on_ranks(1)
def test_an_old_keras_is_left_alone_with_a_warning(ctx):
    (warning,) = _warnings_of_repairs("3.7.0")
    assert "Keras 3.7.0 is left as it is" in warning
    assert not any(_is_repaired(each) for each in repaired())


@pytest.mark.parametrize("version", ["3.17.0", "4.0.1"])
@on_ranks(1)
def test_a_newer_keras_than_the_tested_ones_is_refused(ctx, version):
    keras.__version__ = version
    expected = rf"Keras 3\.8 to 3\.16, but Keras {version} is installed.*ALLOW_UNTESTED_KERAS=1"
    for make in (tfdist.MirroredStrategy, tfdist.MultiWorkerMirroredStrategy):
        with pytest.raises(UnsupportedKerasError, match=expected):
            make()


@on_ranks(1, env={"TFDIST_ALLOW_UNTESTED_KERAS": "1"})
def test_a_newer_keras_is_tried_with_a_warning(ctx):
    # Keras 3.16 has it.
    vars(keras.src.backend).setdefault("ops", keras.ops)
    (warning,) = _warnings_of_repairs("3.17.0")
    assert "not with 3.17.0; results may be wrong" in warning
    assert all(_is_repaired(each) for each in repaired())


@on_ranks(1)
def test_models_of_an_old_keras_are_not_compiled_in_the_scope(ctx):
    keras.__version__ = "3.7.0"
    with tfdist.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        with pytest.raises(
            UnsupportedKerasError,
            match=r"OneDeviceStrategy .* Keras 3\.8 or later, but Keras 3\.7\.0",
        ):
            model.compile("sgd", "mse")
    model.compile("sgd", "mse")
