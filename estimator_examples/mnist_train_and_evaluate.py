r"""A model_fn on Fashion-MNIST, trained by workers together and evaluated by an evaluator.

    pip install tensorflow-estimator==2.15.0 tf_keras
    tfdist run --workers 2 --evaluator \
        estimator_examples/mnist_train_and_evaluate.py --model-dir /tmp/mnist

prints (on two cores, in about a minute):

    [chief] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [chief] 2 workers, 1000 steps of 128 images, 64 on each worker
    [evaluator 0] step 0: accuracy 0.0906, loss 2.3030
    ...
    [evaluator 0] step 1000: accuracy 0.8913, loss 0.3009
    [evaluator 0] exported /tmp/mnist/export/final/(time); read back, its test accuracy is 0.8913

The number of evaluated checkpoints depends on the machine; the last one is always evaluated.
Stopped and restarted, the job continues from its last checkpoint; `--steps 1500` then trains
longer. Without `tfdist run` (no TF_CONFIG) the same script trains alone, to 0.88 with half the
images. The lines that make it run on current TensorFlow, and on several workers, are marked
below.
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from shared import (
    SEED,
    PrintResults,
    batches,
    evaluates,
    fashion_mnist,
    newest_export,
    training_parser,
)

import tfdist
from tfdist import estimator  # was: from tensorflow import estimator

v1 = tf.compat.v1
SIDE, CLASSES = fashion_mnist.SIDE, fashion_mnist.CLASSES
EVALUATION_BATCH = 500


def parse_arguments() -> argparse.Namespace:
    return training_parser(__doc__, steps=1000, batch_size=64).parse_args()


def convolution(images: tf.Tensor, name: str, side: int, filters: int) -> tf.Tensor:
    """Filters of `side` x `side` pixels, which halve the image."""
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", (side, side, images.shape[-1], filters))
        bias = v1.get_variable("bias", filters, initializer=v1.zeros_initializer())
    return tf.nn.relu(tf.nn.conv2d(images, kernel, strides=2, padding="SAME") + bias)


def dense(values: tf.Tensor, name: str, units: int) -> tf.Tensor:
    """A layer without an activation."""
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", (values.shape[-1], units))
        bias = v1.get_variable("bias", units, initializer=v1.zeros_initializer())
    return values @ kernel + bias


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor | None, mode: str, params: dict[str, int]
) -> estimator.EstimatorSpec:
    """Two convolutions, one hidden layer: 422,000 weights. It does not depend on workers."""
    images = tf.cast(features["image"], tf.float32)[..., tf.newaxis] / 255
    hidden = convolution(images, "first", side=5, filters=32)
    hidden = convolution(hidden, "second", side=3, filters=64)
    hidden = tf.reshape(hidden, (-1, hidden.shape[1] * hidden.shape[2] * hidden.shape[3]))
    logits = dense(tf.nn.relu(dense(hidden, "hidden", 128)), "logits", CLASSES)
    predictions = {"class": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions)

    labels = tf.cast(labels, tf.int32)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == estimator.ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(labels, predictions["class"])}
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    step = v1.train.get_global_step()
    optimizer = v1.train.AdamOptimizer(v1.train.cosine_decay(0.002, step, params["steps"]))
    train_op = optimizer.minimize(loss, global_step=step)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def serving_input() -> estimator.export.ServingInputReceiver:
    """The inputs of the exported model: images as in the files."""
    image = v1.placeholder(tf.uint8, (None, SIDE, SIDE), "image")
    return estimator.export.ServingInputReceiver({"image": image}, {"image": image})


def main() -> None:
    arguments = parse_arguments()
    cluster = tfdist.Cluster.from_environment()
    images = fashion_mnist.load_fashion_mnist(announce=cluster.is_chief)

    strategy = tfdist.MultiWorkerMirroredStrategy()  # was: tf.distribute.Multi...

    def training_input(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        features, size = {"image": images.train_images}, arguments.batch_size
        return batches(features, images.train_labels, size, training=True, context=input_context)

    def test_input() -> tf.data.Dataset:
        features = {"image": images.test_images}
        return batches(features, images.test_labels, EVALUATION_BATCH, training=False)

    if cluster.is_chief:
        workers = strategy.num_replicas_in_sync
        print(
            f"{workers} worker{'s' * (workers > 1)}, {arguments.steps} steps of "
            f"{workers * arguments.batch_size} images, {arguments.batch_size} on each worker",
            flush=True,
        )
    classifier = estimator.Estimator(
        model_fn,
        config=estimator.RunConfig(
            model_dir=str(arguments.model_dir),
            tf_random_seed=SEED,
            save_checkpoints_steps=250,
            train_distribute=strategy,
        ),
        params={"steps": arguments.steps},
    )
    estimator.train_and_evaluate(
        classifier,
        estimator.TrainSpec(training_input, max_steps=arguments.steps),
        estimator.EvalSpec(
            test_input,
            steps=None,
            exporters=[
                PrintResults("accuracy", "loss"),
                estimator.FinalExporter("final", serving_input),
            ],
            start_delay_secs=0,
            throttle_secs=1,
        ),
    )

    if evaluates(cluster):
        exported = newest_export(arguments.model_dir, "final")
        classify = tf.saved_model.load(str(exported)).signatures["serving_default"]
        classes = classify(image=tf.constant(images.test_images))["class"].numpy()
        accuracy = (classes == images.test_labels).mean()
        print(f"exported {exported}; read back, its test accuracy is {accuracy:.4f}")


if __name__ == "__main__":
    main()
