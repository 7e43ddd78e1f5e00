"""`fit`, its validations, `evaluate` and `predict` open their data once for each pass.

Keras also makes an iterator after the last step, which is never read.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

import tfdist
from support.processes.ranks import on_ranks
from support.training.models import EXACT, built_classifier, difference, examples

ROWS, BATCH, EPOCHS = 40, 8, 3


class _Count:
    """Counts iterators of datasets that are made."""

    def __init__(self, monkeypatch):
        self.made = 0
        original = iterator_ops.OwnedIterator.__init__

        def counting(iterator, dataset=None, *args, **kwargs):
            self.made += dataset is not None
            original(iterator, dataset, *args, **kwargs)

        monkeypatch.setattr(iterator_ops.OwnedIterator, "__init__", counting)

    def of(self, call):
        before = self.made
        call()
        return self.made - before


def _data(seed, rows=ROWS):
    dataset = tf.data.Dataset.from_tensor_slices(examples(ROWS)).shuffle(ROWS, seed=seed)
    return dataset.take(rows).map(lambda x, y: (x * 2, y)).batch(BATCH)


def _train(scope, count=None):
    with scope:
        model = built_classifier(keras.optimizers.SGD(0.1))
    model.set_weights([np.full(v.shape, 0.1) for v in model.weights])
    # Which rows a part has depends on how often it was opened.
    train, part, arrays = _data(3), _data(4, 13), examples(19)
    calls = {
        "fit": lambda: found.append(
            model.fit(train, validation_data=part, epochs=EPOCHS, verbose=0).history["val_loss"]
        ),
        "fit on arrays": lambda: model.fit(
            *arrays, validation_data=arrays, epochs=EPOCHS, verbose=0
        ),
        "evaluate": lambda: found.append(model.evaluate(part, verbose=0)),
        "predict": lambda: found.append(model.predict(part, verbose=0)),
    }
    found: list = []
    made = {}
    for name, call in calls.items():
        made[name] = call() if count is None else count.of(call)
    return made, [*found, *model.get_weights()]


def _check(ctx):
    with pytest.MonkeyPatch.context() as monkeypatch:
        count = _Count(monkeypatch)
        strategy = tfdist.MultiWorkerMirroredStrategy()
        made, found = _train(strategy.scope(), count)
    assert made == {"fit": 2 * EPOCHS, "fit on arrays": 2 * EPOCHS, "evaluate": 1, "predict": 1}
    if ctx.rank == 0:
        _, expected = _train(tf.distribute.get_strategy().scope())
        assert difference(found, expected) <= EXACT


@on_ranks(2)
def test_workers(ctx):
    _check(ctx)


@pytest.mark.long(covered_by="test_workers")
@on_ranks(2, env={"TFDIST_ELASTIC": "1:2:2"})
def test_members_of_an_elastic_job(ctx):
    _check(ctx)
