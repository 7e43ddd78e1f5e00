"""Every kind of input that `fit` and `predict` take, on several workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import classifier, examples, identical, train_like_one_process
from support.training.more_models import WORDS, nested_dataset, nested_model, reader_of_words, words


@pytest.mark.long("3-ranks", covered_by="the other cases")
@on_ranks(2, 3, check=identical)
def test_predict_returns_all_rows_in_order_on_every_worker(ctx):
    with tfdist.MultiWorkerMirroredStrategy().scope():
        rows = keras.Input((1,))
        doubled, above = keras.layers.Rescaling(2.0), keras.layers.Rescaling(1.0, 5.0)
        model = keras.Model(rows, {"doubled": doubled(rows), "above": above(rows)})
    results = []
    # Divides by nothing; the last batch is empty on all workers but one; less than one batch.
    for count in (101, 33, 1):
        numbers = np.arange(count, dtype="float32")[:, np.newaxis]
        for data in (tf.data.Dataset.from_tensor_slices(numbers).batch(16), numbers):
            predicted = model.predict(data, verbose=0, batch_size=16 if data is numbers else None)
            np.testing.assert_array_equal(predicted["doubled"], numbers * 2)
            np.testing.assert_array_equal(predicted["above"], numbers + 5)
            results += [predicted["doubled"], predicted["above"]]
    return results


@on_ranks(2, check=identical)
def test_nested_inputs_and_outputs(ctx):
    model = train_like_one_process(
        ctx, nested_model, lambda model: model.fit(nested_dataset(), epochs=2, verbose=0)
    )
    predicted = model.predict(nested_dataset(), verbose=0)
    assert predicted["label"].shape == (320, models.CLASSES)
    return [*model.get_weights(), predicted["label"], predicted["sum"]]


@pytest.mark.long(covered_by="test_strings_in_the_dataset")
@on_ranks(2, check=identical)
def test_strings_in_the_model(ctx):
    data = words(320).batch(64)
    model = train_like_one_process(
        ctx, reader_of_words, lambda model: model.fit(data, epochs=2, verbose=0)
    )
    return [*model.get_weights(), model.predict(data, verbose=0)]


@on_ranks(2, check=identical)
def test_strings_in_the_dataset(ctx):
    read = keras.layers.TextVectorization(output_mode="multi_hot", vocabulary=WORDS)
    data = words(320).batch(64).map(lambda inputs, label: (read(inputs["word"]), label))
    model = train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1)),
        lambda model: model.fit(data, epochs=2, verbose=0),
    )
    return model.get_weights()


@pytest.mark.long(covered_by="test_one_order, test_datasets_from_a_function")
@on_ranks(2, check=identical)
def test_infinite_datasets(ctx):
    data = models.dataset(64 * 3, 64).repeat()
    model = train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1)),
        lambda model: model.fit(
            data,
            epochs=2,
            steps_per_epoch=7,
            validation_data=data,
            validation_steps=2,
            verbose=0,
        ),
    )
    assert model.optimizer.iterations.numpy() == 14
    return model.get_weights()


def _weights_of_rows():
    return np.linspace(0.0, 2.0, 320, dtype="float32")


# Class weights become sample weights.
@pytest.mark.long("*-class_weight", covered_by="the other cases")
@pytest.mark.parametrize(
    "options",
    [
        {"sample_weight": _weights_of_rows()},
        {"class_weight": {0: 0.5, 1: 1.0, 2: 3.0}},
        {"validation_split": 0.2},
    ],
    ids=lambda options: next(iter(options)),
)
@on_ranks(2, check=identical)
def test_arrays(ctx, options):
    features, labels = examples(320)
    model = train_like_one_process(
        ctx,
        lambda: classifier(
            keras.optimizers.SGD(0.1), weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()]
        ),
        lambda model: model.fit(
            features, labels, batch_size=64, epochs=2, shuffle=False, verbose=0, **options
        ),
    )
    return model.get_weights()


@on_ranks(2, check=identical)
def test_datasets_from_a_function(ctx):
    def share(context):
        assert context.num_input_pipelines == ctx.size
        assert context.input_pipeline_id == ctx.rank
        batch = context.get_per_replica_batch_size(64)
        return models.dataset(320, batch).shard(ctx.size, context.input_pipeline_id)

    def fit(model):
        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return model.fit(models.dataset(320, 64), verbose=0)
        data = strategy.distribute_datasets_from_function(share)
        return model.fit(data, steps_per_epoch=5, verbose=0)

    model = train_like_one_process(ctx, lambda: classifier(keras.optimizers.SGD(0.1)), fit)
    return model.get_weights()


def _shuffled(rows):
    return tf.data.Dataset.from_tensor_slices(examples(rows)).shuffle(rows, seed=3).batch(64)


@on_ranks(2, check=identical)
def test_one_order(ctx):
    """Each epoch has the batches that it has in one process; of arrays with the chief's seed."""

    def fit(model):
        keras.utils.set_random_seed(7)
        histories = [model.fit(_shuffled(320), epochs=3, verbose=0)]
        keras.utils.set_random_seed(ctx.rank)
        histories.append(model.fit(*examples(320), batch_size=64, epochs=2, verbose=0))
        histories[0].history["loss"] += histories[1].history["loss"]
        return histories[0]

    model = train_like_one_process(ctx, lambda: classifier(keras.optimizers.SGD(0.1)), fit)
    return model.get_weights()


def _sum_of_means(library, scope, rows: np.ndarray) -> float:
    """Trains for an epoch by a loss whose gradient is the mean of the rows."""
    with scope:
        kernel = library.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = library.Sequential([library.layers.Input((1,)), kernel])
        model.compile(library.optimizers.SGD(1.0), lambda _, predicted: predicted)
    model.fit(rows, rows, batch_size=8, verbose=0)
    return -float(model.get_weights()[0][0, 0])


@on_ranks(2)
def test_arrays_without_a_seed_are_shared_out_completely(ctx):
    rows = np.arange(64, dtype="float32")[:, np.newaxis] ** 2
    for library in (keras, tf_keras):
        scope = tfdist.MultiWorkerMirroredStrategy().scope()
        assert _sum_of_means(library, scope, rows) == rows.sum() / 8
    # The order differs in each epoch.
    batches = []
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), lambda _, predicted: predicted)
        model.set_weights([np.ones([1, 1]), np.zeros([1])])
    note = keras.callbacks.LambdaCallback(on_batch_end=lambda _, logs: batches.append(logs["loss"]))
    model.fit(rows, rows, batch_size=64 // 2, epochs=3, callbacks=[note], verbose=0)
    assert len(set(batches[::2])) == 3
