"""Repairs of defects of the package itself."""

from __future__ import annotations

import functools

import tensorflow as tf
import tf_keras


def repair() -> None:
    """Installs the repairs; to be called once."""
    _let_baselines_start()
    _count_baseline_over_replicas()


def _let_baselines_start() -> None:
    """The variable of baselines is initialized after a check that all features have the same size.

    No features exist at that time. Here the computations with the variable wait for the check.
    """
    from tensorflow_estimator.python.estimator.canned import baseline

    original = baseline._get_batch_size_and_size_checks

    @functools.wraps(original)
    def _get_batch_size_and_size_checks(features, weight_column_key):
        checks, size = original(features, weight_column_key)
        with tf.control_dependencies(checks):
            return [], tf.identity(size)

    baseline._get_batch_size_and_size_checks = _get_batch_size_and_size_checks


class _AccuracyBaseline(tf_keras.metrics.Mean):
    """The accuracy of a model that always predicts the more frequent of two labels."""

    def __init__(self, label_mean: tf_keras.metrics.Mean, name: str) -> None:
        super().__init__(name)
        self._label_mean = label_mean
        self.add_update(tf.no_op())

    def result(self) -> tf.Tensor:
        mean = self._label_mean.result()
        return tf.maximum(mean, 1 - mean)


def _count_baseline_over_replicas() -> None:
    """`BinaryClassHead` computes "accuracy_baseline" from the labels of the first replica only."""
    from tensorflow_estimator.python.estimator.head.binary_class_head import BinaryClassHead

    def _update_accuracy_baseline(self, eval_metrics):
        key = self._accuracy_baseline_key
        label_mean = eval_metrics[self._label_mean_key]
        eval_metrics[key] = _AccuracyBaseline(label_mean, eval_metrics[key].name)

    BinaryClassHead._update_accuracy_baseline = _update_accuracy_baseline
