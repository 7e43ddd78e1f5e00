"""Optimizers that do more than subtract the gradient, and gradients that are not dense."""

from __future__ import annotations

import keras
import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import chosen
from support.training import models
from support.training.models import (
    ADAPTIVE,
    EXACT,
    built_classifier,
    classifier,
    difference,
    examples,
    identical,
)
from support.training.more_models import (
    CLIPPED,
    loss_scaled_classifier,
    overflow_on_one_of_two,
    train_embedding_like_one_process,
)

STEPS = 20


@on_ranks(2, check=identical)
def test_clipping(ctx):
    """The sum is clipped, as one process with the whole batch does."""
    results = []
    # The others on devices, in test_optimizers.py.
    for make in chosen(CLIPPED, "global_clipnorm", "accumulation").values():
        model = models.train_like_one_process(
            ctx,
            lambda make=make: classifier(make()),
            lambda model: model.fit(models.dataset(64 * STEPS, 64), verbose=0),
            ADAPTIVE,
        )
        results += model.get_weights()
    return results


@on_ranks(2, check=identical)
def test_clipping_by_replica(ctx):
    """Keras by itself clips what each worker found, before the sum."""
    limit = 0.1
    options = tfdist.CommunicationOptions(clip="replica")

    def build(**options):
        return built_classifier(keras.optimizers.AdamW(weight_decay=0.01, **options))

    keras.utils.set_random_seed(0)
    features, labels = examples(64 * STEPS)
    alone = build()
    if ctx.rank == 0:
        models.train_by_clipped_means(alone, models.batches(features, labels, 64), limit)
    with tfdist.MultiWorkerMirroredStrategy(communication_options=options).scope():
        keras.utils.set_random_seed(ctx.rank)
        model = build(clipnorm=limit)
    model.fit(features, labels, batch_size=64, shuffle=False, verbose=0)
    if ctx.rank == 0:
        assert difference(model.get_weights(), alone.get_weights()) <= ADAPTIVE
    return [*model.get_weights(), *models.slots(model)]


# Adam, which has slots.
@pytest.mark.long("*-sgd", "*-adagrad", covered_by="the other cases")
@pytest.mark.parametrize(
    ("name", "tolerance", "ids_dtype"),
    [("SGD", EXACT, "int32"), ("Adam", ADAPTIVE, "int64"), ("Adagrad", ADAPTIVE, "int32")],
    ids=["sgd", "adam", "adagrad"],
)
@on_ranks(2, check=identical)
def test_embedding(ctx, name, tolerance, ids_dtype):
    return train_embedding_like_one_process(ctx, name, tolerance, ids_dtype)


@on_ranks(2, check=identical)
def test_gradient_accumulation_and_moving_averages(ctx):
    options = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}
    model = models.train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, **options)),
        lambda model: model.fit(models.dataset(64 * STEPS, 64), verbose=0),
    )
    return model.get_weights()


@on_ranks(2, check=identical)
def test_loss_scale_with_mixed_float16(ctx):
    keras.mixed_precision.set_global_policy("mixed_float16")
    with tfdist.MultiWorkerMirroredStrategy().scope():
        keras.utils.set_random_seed(ctx.rank)
        model = loss_scaled_classifier()
    overflow_on_one_of_two(model)
    return [*model.get_weights(), *models.slots(model)]
