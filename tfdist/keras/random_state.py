"""The states of a process's random generators that scripts draw from between two calls of Keras.

A `fit` draws from them, too: layers and datasets that it makes take their seeds there. A process
that leaves a `fit` out would draw other numbers afterwards than those that have made it.

Keras's own generator is a variable, which newcomers receive with the others.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

# TensorFlow's generator of the seeds of operations has no public name.
from tensorflow.python.eager import context

from tfdist.elastic.plain_values import decode, encode


def packed() -> bytes:
    """Returns the states of the generators of Python, of NumPy, and of TensorFlow's seeds."""
    # There is none before the program has set a seed, or drawn one.
    of_tensorflow = getattr(context.context(), "_rng", None)
    # A generator of NumPy of another kind, which a program may have set, is left alone.
    of_numpy: Any = np.random.get_state(legacy=True)
    return encode(
        {
            "python": random.getstate(),
            "numpy": tuple(of_numpy) if of_numpy[0] == "MT19937" else None,
            "tensorflow": None if of_tensorflow is None else of_tensorflow.getstate(),
        },
        "the states of random generators",
    )


def restore(content: bytes) -> None:
    """Gives this process's generators the states that another one's had."""
    states: dict[str, Any] = decode(content)
    random.setstate(states["python"])
    if states["numpy"] is not None:
        np.random.set_state(states["numpy"])
    of_tensorflow = getattr(context.context(), "_rng", None)
    if states["tensorflow"] is not None and of_tensorflow is not None:
        of_tensorflow.setstate(states["tensorflow"])
