"""Workers of "sync" with different numbers of rows: `fit` equals one process with all rows."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.ps_job import meet, on_job, served
from support.tiers import chosen
from support.training import models, parity_models
from support.training.models import EXACT, built_classifier, difference, examples, identical
from support.training.uneven_models import CASES

STEPS = 5
# The others in test_uneven_workers.py and test_uneven_batches.py, which weigh by the same code.
LOSSES = chosen(CASES, "a scalar", "rows, Adam", "mean with sample weight")


def _like_alone(results):
    results = [result for result in results if result is not None]
    for name, case in LOSSES.items():
        of_workers = [result[name] for result in results]
        identical([[*one.weights, *one.slots, *one.history.values()] for one in of_workers])
        parity_models.assert_like_alone("ParameterServerStrategy", name, case, of_workers[0])


# A batch of 7 rows is cut into 4 and 3; the last one has 1 row, for the chief.
@pytest.mark.long(covered_by="parallel/keras/test_uneven_workers.py")
@on_job(2, timeout=150.0, check=_like_alone)
def test_losses(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {
        name: parity_models.train(case, strategy, functools.partial(meet, ctx, name))
        for name, case in LOSSES.items()
    }


@on_job(2)
def test_a_dataset_of_each_worker(ctx):
    """The chief has 5 rows of each batch of 7, the other worker 2."""
    if served():
        return
    features, labels = examples(7 * STEPS)
    keras.utils.set_random_seed(0)
    alone = built_classifier(keras.optimizers.SGD(0.1))
    expected = alone.fit(models.dataset(7 * STEPS, 7), verbose=0).history
    strategy = tfdist.ParameterServerStrategy(mode="sync")

    def rows(context):
        first, last = ((0, 5), (5, 7))[context.input_pipeline_id]
        own = [a.reshape(STEPS, 7, *a.shape[1:])[:, first:last] for a in (features, labels)]
        own = [np.concatenate(list(a)) for a in own]
        data = tf.data.Dataset.from_tensor_slices(tuple(own))
        return data.batch(last - first, drop_remainder=True)

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1))
    meet(ctx, "made")
    data = strategy.distribute_datasets_from_function(rows)
    history = model.fit(data, steps_per_epoch=STEPS, verbose=0).history
    assert difference(model.get_weights(), alone.get_weights()) <= EXACT
    assert difference([*history.values()], [*expected.values()]) <= EXACT
