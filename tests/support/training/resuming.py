"""Trainings that are interrupted and continue, compared with uninterrupted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.training import models
from support.training.models import examples

ROWS, BATCH, EPOCHS = 88, 16, 3  # six batches, the last one short
STEPS = 6


class Interrupted(Exception):
    """Ends a training before its time."""


class Batches(keras.utils.PyDataset):
    """The examples in batches; shuffles its rows itself, with a generator of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._random = np.random.default_rng(3)
        self._order = np.arange(ROWS)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._order[index * BATCH : (index + 1) * BATCH]
        features, labels = examples(ROWS)
        return features[rows], labels[rows]

    def on_epoch_end(self) -> None:
        """Shuffles."""
        self._random.shuffle(self._order)


def shuffled(**options: Any) -> tf.data.Dataset:
    """The examples as a dataset with another order in each epoch."""
    rows = tf.data.Dataset.from_tensor_slices(examples(ROWS)).shuffle(ROWS, seed=5, **options)
    return rows.batch(BATCH)


def mapped(before: bool) -> tf.data.Dataset:
    """The examples with a map, and a shuffle before or after it."""
    rows = tf.data.Dataset.from_tensor_slices(examples(ROWS))
    double = lambda x, y: (x * 2, y)  # noqa: E731
    if before:
        return rows.shuffle(ROWS, seed=5).map(double).batch(BATCH)
    return rows.map(double).shuffle(ROWS, seed=5).batch(BATCH)


def arrays() -> dict[str, Any]:
    """The examples as arrays."""
    x, y = examples(ROWS)
    return {"x": x, "y": y, "batch_size": BATCH}


# The arguments of `fit`, made for each training.
INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": arrays,
    "batches_of_arrays": lambda: {**arrays(), "shuffle": "batch"},
    "dataset": lambda: {"x": shuffled()},
    "dataset_shuffled_twice": lambda: {"x": shuffled().unbatch().shuffle(30, seed=2).batch(BATCH)},
    "dataset_shuffled_before_a_map": lambda: {"x": mapped(True)},
    "dataset_shuffled_after_a_map": lambda: {"x": mapped(False)},
    "endless_dataset": lambda: {"x": shuffled().repeat(), "steps_per_epoch": 5},
    "dataset_longer_than_an_epoch": lambda: {"x": shuffled().repeat(9), "steps_per_epoch": 4},
    "dataset_of_unknown_size": lambda: {"x": shuffled().filter(lambda x, y: True)},
    "py_dataset": lambda: {"x": Batches()},
    "threads_of_a_py_dataset": lambda: {"x": Batches(workers=2)},
}


class Follow(keras.callbacks.Callback):
    """Notes the logs and the steps, and interrupts the training after one of them."""

    def __init__(self, at: tuple[int, int] | None = None) -> None:
        super().__init__()
        self._at = at
        self.steps: list[tuple[int, int]] = []
        self.logs: dict[int, dict[str, float]] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the step."""
        self.steps.append((self._epoch, batch))
        if self.steps[-1] == self._at:
            raise Interrupted

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the logs."""
        self.logs[epoch] = dict(logs)


def assert_goes_on(
    build: Callable[[], Any],
    data: Callable[[], dict[str, Any]],
    backup: Callable[[], keras.callbacks.Callback],
    at: tuple[int, int],
    goes_on_at: tuple[int, int],
    tolerance: float = models.EXACT,
    between: Callable[[], None] = lambda: None,
    counts_steps: bool = True,
) -> Any:
    """Asserts that a training which is interrupted ends as an uninterrupted one.

    Args:
      build: makes a compiled model with built weights, each time the same.
      data: makes the arguments of `fit`.
      backup: makes a BackupAndRestore.
      at: the last step before the interruption: epoch and batch.
      goes_on_at: the first step after it.
      tolerance: the largest difference allowed.
      between: called between the two parts.
      counts_steps: whether the optimizer's step count is determined. Keras finds the end of data of
        unknown size in a step without rows, and whether that step is counted is a race.

    Returns:
      The model of the training that was interrupted.
    """

    def fit(callbacks: list) -> Any:
        keras.utils.set_random_seed(0)
        model = build()
        model.fit(**data(), epochs=EPOCHS, verbose=0, callbacks=callbacks)
        return model

    whole, before, after = Follow(), Follow(at), Follow()
    expected = fit([whole])
    with pytest.raises(Interrupted):
        fit([backup(), before])
    between()
    received = fit([backup(), after])
    assert after.steps[0] == goes_on_at, after.steps
    rest = whole.steps[whole.steps.index(goes_on_at) :]
    assert after.steps == rest
    assert models.difference(received.get_weights(), expected.get_weights()) <= tolerance
    slots = [models.slots(model)[0 if counts_steps else 1 :] for model in (received, expected)]
    assert models.difference(*slots) <= tolerance
    for epoch, logs in after.logs.items():
        assert logs == pytest.approx(whole.logs[epoch], abs=tolerance), epoch
    return received
