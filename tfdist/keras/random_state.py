"""The states of a process's random generators that scripts draw from between two calls of Keras.

A `fit` also draws from them: layers and datasets that it makes take their seeds there. A process
that leaves a `fit` out would draw other numbers afterwards than the other processes.

Keras's own generator is a variable, which newcomers receive with the others.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tfdist.elastic.plain_values import decode, encode

# TensorFlow's generator of the seeds of operations has no public name.
from tfdist.internals.tensorflow import context

_WORDS = 624  # of a state of NumPy


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
    """Gives this process's generators the states that another one's had.

    Raises:
      ValueError: there is a state that a generator cannot take; none has changed.
    """
    states = decode(content)
    try:
        of_python, of_numpy, of_tensorflow = (
            states[name] for name in ("python", "numpy", "tensorflow")
        )
        random.Random().setstate(of_python)
        if of_numpy is not None:
            _check_numpy(of_numpy)
        if of_tensorflow is not None:
            random.Random().setstate(of_tensorflow)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        raise ValueError(
            f"expected the states of random generators of another member, received others: {error}"
        ) from error
    random.setstate(of_python)
    if of_numpy is not None:
        np.random.set_state(of_numpy)
    own = getattr(context.context(), "_rng", None)
    if of_tensorflow is not None and own is not None:
        own.setstate(of_tensorflow)


def _check_numpy(state: tuple) -> None:
    np.random.RandomState().set_state(state)
    position = state[2]
    # NumPy takes any position, and reads there.
    if type(position) is not int or not 0 <= position <= _WORDS:
        raise ValueError(f"expected a position in [0, {_WORDS}], received {position!r}")
