"""Variables that belong to one rank: their gradients are not reduced.

For parts of a model that differ between ranks, such as the tables of embeddings that each rank
holds for all: the rows that others look up travel by `all_to_all`, and so do their gradients.

The loss of a step is the mean of what N ranks compute. The gradient of a shared variable is the
mean of N gradients, and that of a local variable, which holds what all ranks made of it, has to be
divided by N too: `scale_local_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf


class LocalVariables:
    """Which variables are local, and what becomes of their gradients.

    Args:
      asked: what the user called, for messages.
      scale: whether their gradients are divided by the number of ranks.
    """

    def __init__(self, asked: str, scale: bool = True) -> None:
        if not isinstance(scale, bool):
            raise TypeError(
                f"{asked}: expected scale_local_gradients to be True or False, received {scale!r}"
            )
        self._asked = asked
        self._scale = scale
        self._variables: dict[Any, Any] = {}
        self._layers: list[Any] = []
        self._saved: tuple[str, ...] = ()

    def register(self, variable: Any) -> None:
        """Makes a variable local.

        Raises:
          TypeError: it is neither a variable nor a tensor.
        """
        self._variables[self._identity(variable)] = variable

    def register_layers(self, layers: Sequence[Any]) -> None:
        """Makes all trainable weights of layers local, also those that are not made yet."""
        self._layers.extend(layers)

    def expect(self, names: Iterable[str]) -> None:
        """Names the variables that were local when an optimizer was saved: register them again."""
        self._saved = tuple(names)

    def names(self) -> list[str]:
        """The names of all local variables, in the order of registration."""
        known = [_name(variable) for variable in self._all().values()]
        return list(self._saved) if len(known) < len(self._saved) else known

    def positions(self, sources: Sequence[Any]) -> set[int]:
        """Returns which of `sources` are local.

        Raises:
          ValueError: fewer variables are local than when the optimizer was saved.
        """
        local = self._all()
        # Counted, not compared by name: Keras gives some variables another path when it loads them.
        if len(local) < len(self._saved):
            raise ValueError(
                f"{self._asked}: expected register_local_var to be called, before training goes "
                f"on, for the {len(self._saved)} variables that were local to each rank when this "
                f"optimizer was saved, {', '.join(self._saved)}; received {len(local)}"
            )
        if not local:
            return set()
        return {i for i, source in enumerate(sources) if self._identity(source) in local}

    def keep(self, gradient: Any, ranks: int) -> Any:
        """Returns what this rank applies of the gradient of a local variable."""
        if gradient is None or not self._scale:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / ranks, gradient.indices, gradient.dense_shape)
        return gradient / ranks

    def _all(self) -> dict[Any, Any]:
        weights = [weight for layer in self._layers for weight in layer.trainable_weights]
        return self._variables | {self._identity(weight): weight for weight in weights}

    def _identity(self, source: Any) -> Any:
        variable = variable_of(source)
        if variable is None and not isinstance(source, tf.Tensor):
            raise TypeError(
                f"{self._asked}: expected a variable for a local one, received {source!r}"
            )
        return (source if variable is None else variable).ref()


def variable_of(source: Any) -> tf.Variable | None:
    """TensorFlow's variable behind a Keras variable; None for what is no variable."""
    source = source if isinstance(source, tf.Variable) else getattr(source, "value", None)
    return source if isinstance(source, tf.Variable) else None


def check_layers(local_layers: Any, asked: str) -> list[Any]:
    """Returns one layer or several as a list.

    Raises:
      TypeError: something is no layer of Keras 3 or tf_keras.
    """
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, Iterable) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise TypeError(f"{asked}: expected layers as local_layers, received {layer!r}")
    return layers


def _name(variable: Any) -> str:
    return getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor"
