"""The base class of tfdist's callbacks, and functions for all callbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfdist._types import KerasCallback


class Callback(keras.callbacks.Callback):
    """A callback that `fit` of Keras 3 and of tf_keras takes."""

    # tf_keras asks which hooks a callback has.
    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


@contextlib.contextmanager
def with_callback(given: Any, callback: Callback, *, first: bool = False) -> Iterator[Any]:
    """Yields the user's callbacks and one of ours, in a form that `fit` takes.

    Args:
      given: the user's argument `callbacks` of `fit`.
      callback: ours.
      first: whether ours runs before the user's; else it runs after them.
    """
    if given is None or isinstance(given, list | tuple):
        others = list(given or ())
        yield [callback, *others] if first else [*others, callback]
    elif not hasattr(given, "callbacks"):
        yield [callback, given] if first else [given, callback]
    else:  # a CallbackList, which is the user's
        given.callbacks.insert(0 if first else len(given.callbacks), callback)
        try:
            yield given
        finally:
            given.callbacks.remove(callback)


@contextlib.contextmanager
def replaced(callback: KerasCallback, **attributes: Any) -> Iterator[None]:
    """Sets attributes of a callback for the duration of a `with` block."""
    before = {name: getattr(callback, name) for name in attributes}
    vars(callback).update(attributes)
    try:
        yield
    finally:
        vars(callback).update(before)
