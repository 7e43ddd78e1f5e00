"""Models without values, of any size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist._types import KerasModel, KerasVariable
from tfdist.internals.keras_3 import StatelessScope, global_state

# Where Keras keeps the variables that get values when the outermost scope ends.
_UNINITIALIZED = "uninitialized_variables"


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within it layers and models of Keras 3 are made without values.

    They have shapes, initializers, `summary()` and `count_params()`, and no memory for values, so
    that a model may be larger than the machine. `initialize` gives them values; `fit` under a
    strategy of tfdist does so by itself. A layer has variables if its input shape is known: make a
    functional model, or a `Sequential` with an `Input`.

    Raises:
      RuntimeError: within another scope that defers variables.

    Example:

    ```python
    with tfdist.keras.deferred():
        model = keras.Sequential([keras.Input((65536,)), keras.layers.Dense(65536)])
    print(model.count_params())  # 4,295,032,832, which would be 17 GB
    ```
    """
    if global_state.get_global_attribute("stateless_scope") is not None:
        raise RuntimeError("deferred: expected no other keras.StatelessScope around it")
    before = list(global_state.get_global_attribute(_UNINITIALIZED) or [])
    try:
        with StatelessScope(initialize_variables=False):
            yield
    except ValueError as error:
        if "in a stateless scope" not in str(error):
            raise
        raise ValueError(
            "deferred: expected layers and models alone, without values; call compile, and "
            "everything that makes or assigns values, after the block"
        ) from error
    finally:
        # Or the next scope that ends anywhere would give them values.
        global_state.set_global_attribute(_UNINITIALIZED, before)


def initialize(model: KerasModel) -> None:
    """Gives values to the variables of a model, or a layer, that was made in `deferred`.

    They are the same as without `deferred`. Under a strategy call it in the
    strategy's scope. Variables with values keep them.

    Args:
      model: of Keras 3.
    """
    with tf.init_scope():
        for variable in model.variables:
            if is_deferred(variable):
                variable._deferred_initialize()


def is_deferred(variable: KerasVariable) -> bool:
    """Whether a variable of Keras 3 has no value yet."""
    return getattr(variable, "_value", variable) is None
