"""Which variables of Keras the workers of parameter servers share."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfdist
from support.ps_job import on_job, served
from support.training import models
from tfdist.keras.workers import is_on_servers, is_table


def _is_shared(variable) -> bool:
    return is_on_servers(variable.value if isinstance(variable, keras.Variable) else variable)


@on_job(1)
def test_what_is_each_workers_own(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        sgd = keras.optimizers.SGD(0.1, momentum=0.9)
        scaled = keras.optimizers.LossScaleOptimizer(sgd)
        model = models.classifier(scaled, middle=[keras.layers.Dropout(0.5)])
        model.build((None, models.COLUMNS))
        scaled.build(model.trainable_variables)
        accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        accumulating.build(model.trainable_variables)
        tables = tf.Variable(tf.zeros([0, 4]), name="remote_rows")
        generator = tf.random.Generator.from_seed(1)
    (dropout,) = (layer for layer in model.layers if isinstance(layer, keras.layers.Dropout))
    own = [
        sgd.learning_rate,
        scaled.step_counter,
        scaled.dynamic_scale,
        dropout.seed_generator.state,
        generator.state,
        *accumulating._accumulated_gradients,
    ]
    assert not any(_is_shared(variable) for variable in own)
    shared = [*model.trainable_variables, *sgd.momentums, sgd._iterations, tables]
    assert all(_is_shared(variable) for variable in shared)
    # A name alone makes no table.
    assert not is_table(tables)


@on_job(1)
def test_what_is_made_while_a_model_finds_its_shapes(ctx):
    if served():
        return
    with tfdist.ParameterServerStrategy().scope():
        model = keras.Sequential([tfdist.layers.Embedding(output_dim=4), keras.layers.Dropout(0.5)])
        model.compile("sgd", "mse", metrics=["mae"])
    ids = tf.range(8, dtype=tf.int64)
    model.fit(ids, tf.zeros([8, 4]), batch_size=4, verbose=0)
    embedding, dropout = model.layers
    assert is_table(embedding.rows.value) and _is_shared(embedding.rows)
    assert not _is_shared(dropout.seed_generator.state)
    assert not any(_is_shared(v) for metric in model.metrics for v in metric.variables)
