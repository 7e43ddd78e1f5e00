"""`Sharding`: each worker has the slots of its part, and all train as one process."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import (
    ADAPTIVE,
    built_classifier,
    classifier,
    dataset,
    difference,
    examples,
    identical,
)

STEPS, BATCH = 20, 64
K = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: K.SGD(0.1),
    "momentum": lambda: K.SGD(0.1, momentum=0.9),
    "nesterov": lambda: K.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: K.Adam(0.01),
    "amsgrad": lambda: K.Adam(0.01, amsgrad=True),
    "adamw": lambda: K.AdamW(0.01, weight_decay=0.01),
    "nadam": lambda: K.Nadam(0.01),
    "adamax": lambda: K.Adamax(0.01),
    "rmsprop": lambda: K.RMSprop(0.01, centered=True, momentum=0.5),
    "adagrad": lambda: K.Adagrad(0.1),
    "adadelta": lambda: K.Adadelta(1.0),
    "ftrl": lambda: K.Ftrl(0.1, l1_regularization_strength=0.001),
    "global_clipnorm": lambda: K.Adam(0.01, global_clipnorm=0.1),
    "clipnorm": lambda: K.AdamW(0.01, weight_decay=0.01, clipnorm=0.05),
    "clipvalue": lambda: K.SGD(0.1, momentum=0.9, clipvalue=0.01),
    "ema": lambda: K.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "ema_overwrite": lambda: K.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    # Between two updates the accumulated gradients are each worker's own.
    "accumulation": lambda: K.Adam(0.01, gradient_accumulation_steps=4, global_clipnorm=0.1),
    "schedule": lambda: K.Adam(K.schedules.ExponentialDecay(0.01, 5, 0.5), weight_decay=0.01),
    "loss_scale": lambda: K.LossScaleOptimizer(
        K.Adam(0.01, clipnorm=0.1), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


def train(ctx, make, stage: int):
    return models.train_like_one_process(
        ctx,
        lambda: classifier(make()),
        lambda model: model.fit(dataset(BATCH * STEPS, BATCH), verbose=0),
        ADAPTIVE,
        sharding=tfdist.Sharding(stage=stage),
    )


def own_elements(model) -> int:
    """The elements of all slots that this worker has."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return sum(v.value.shape.num_elements() for v in optimizer.variables if len(v.shape))


@pytest.mark.long(usual=("*-adam", "*-momentum", "*-accumulation"), covered_by="the other cases")
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2, check=identical)
def test_equals_one_process(ctx, name):
    return train(ctx, OPTIMIZERS[name], stage=1).get_weights()


@pytest.mark.long("4-ranks", covered_by="the other cases")
@on_ranks(3, 4, check=identical)
def test_parts_of_other_sizes(ctx):
    """Biases of three elements are cut into 1, 1, 1 and none."""
    model = train(ctx, OPTIMIZERS["clipnorm"], stage=1)
    elements = [variable.shape.num_elements() for variable in model.trainable_variables]
    whole = 2 * sum(elements)
    # One element more of each variable and slot at most.
    assert own_elements(model) <= whole / ctx.size + 2 * len(elements)
    return model.get_weights()


@on_ranks(2, check=identical)
def test_stage_2_accumulates_parts(ctx):
    adam = lambda: K.Adam(0.01, gradient_accumulation_steps=3, global_clipnorm=0.1)  # noqa: E731
    model = train(ctx, adam, stage=2)
    assert own_elements(model) <= 3 * (83 / 2 + 4)
    return model.get_weights()


@on_ranks(2, check=identical)
def test_rows_of_an_embedding(ctx):
    """Their gradients are added up as whole tables, as tfdist adds them without sharding."""

    def trained(strategy):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            layers = [keras.Input((4,)), keras.layers.Embedding(7, 5), keras.layers.Flatten()]
            model = keras.Sequential([*layers, keras.layers.Dense(1)])
            model.compile(K.Adam(0.01), "mse")
        ids = tf.random.stateless_uniform([64, 4], (1, 2), 0, 7, tf.int32)
        model.fit(ids, tf.reduce_sum(ids, axis=1), batch_size=16, shuffle=False, verbose=0)
        return model.get_weights()

    copies = trained(tfdist.MultiWorkerMirroredStrategy())
    parts = trained(tfdist.MultiWorkerMirroredStrategy(sharding=tfdist.Sharding()))
    assert difference(parts, copies) <= ADAPTIVE
    return parts


@on_ranks(2)
def test_bytes_of_a_step(ctx):
    """As many as without sharding; and slots are made without a message, sharded or not."""
    sent = {}
    for stage in (0, 1):
        sharding = tfdist.Sharding(stage=stage) if stage else None
        strategy = tfdist.MultiWorkerMirroredStrategy(sharding=sharding)
        with strategy.scope():
            model = built_classifier(K.Adam(0.01))
            before = strategy.communication_stats().bytes_sent
            model.optimizer.build(model.trainable_variables)
        assert strategy.communication_stats().bytes_sent == before
        features, labels = examples(BATCH)
        rows = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
        step = tf.function(lambda data, s=strategy, m=model: s.run(m.train_step, (data,)))
        (data,) = strategy.experimental_distribute_dataset(rows)
        step(data)
        before = strategy.communication_stats().bytes_sent
        step(data)
        sent[stage] = strategy.communication_stats().bytes_sent - before
    # The parts of two variables differ by an element.
    assert abs(sent[1] - sent[0]) <= 2 * 4


@pytest.mark.long("*-1", covered_by="the other cases")
@pytest.mark.parametrize("stage", [1, 3])
@on_ranks(2, check=identical)
def test_swapped_averages(ctx, stage):
    features, labels = examples(BATCH)

    def fit(model):
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH // 2)
        return model.fit(data, validation_data=data, epochs=3, callbacks=[swap], verbose=0)

    model = models.train_like_one_process(
        ctx,
        lambda: classifier(K.Adam(0.01, use_ema=True, ema_momentum=0.9)),
        fit,
        ADAPTIVE,
        sharding=tfdist.Sharding(stage=stage),
    )
    return model.get_weights()
