"""The names of collectives in error messages, dumps and timelines.

A call may have a label. Otherwise the collective has the name that `named` sets around it, or a
name of its tensors:

    gradient_tape/sequential/dense_1/MatMul/MatMul    gradient in sequential/dense_1
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

_GRADIENT = "gradient_tape"
# Parts of the names of ops that do not begin with a capital letter, as layers' names do not either.
_OPS = ("div_no_nan", "truediv", "mul", "add", "sub", "concat")
_LABEL = "_tfdist_label"
_thread = threading.local()


@contextlib.contextmanager
def named(label: str) -> Iterator[None]:
    """Names the collectives that are made within, and that have no label."""
    holder = _holder()
    before = getattr(holder, _LABEL, None)
    setattr(holder, _LABEL, label)
    try:
        yield
    finally:
        setattr(holder, _LABEL, before)


def _holder() -> object:
    """Returns the object that has the label: replicas that meet do so in another thread."""
    return _thread if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def name_of(tensors: Sequence[tf.Tensor]) -> str:
    """Returns the name of a collective of some tensors: "gradients in dense (and 7 more)"."""
    label = getattr(_holder(), _LABEL, None)
    if label is not None:
        return label
    first, more = tensors[0], len(tensors) - 1
    name = first.name.partition(":")[0] if tf.is_symbolic_tensor(first) else "a tensor"
    scope, _, path = name.partition("/")
    if _is_sum_of_gradients(name):
        name = "a sum of gradients"
    elif scope == _GRADIENT and path:
        name = f"{'gradients' if more else 'gradient'} in {_place(path)}"
    return f"{name} (and {more} more)" if more else name


def _is_sum_of_gradients(name: str) -> bool:
    """Whether back-propagation has made an op, to add the gradients of a tensor's uses."""
    return name.rstrip("_0123456789") == "AddN"


def _place(path: str) -> str:
    """Returns the path of the layer in which an op is, or the path of an op outside of layers."""
    layers = list(itertools.takewhile(lambda part: not _is_op(part), path.split("/")))
    return "/".join(layers) or path


def _is_op(part: str) -> bool:
    return part[:1].isupper() or part.rstrip("_0123456789") in _OPS
