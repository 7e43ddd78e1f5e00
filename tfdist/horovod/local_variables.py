"""Variables that belong to one rank: their gradients are not reduced.

For parts of a model that differ between ranks, such as embedding tables that each rank holds for
all ranks: rows and their gradients travel by `all_to_all`.

The loss of a step is the mean of N ranks' losses. The gradient of a shared variable is the mean of
N gradients. The gradient of a local variable contains the contributions of all ranks and therefore
has to be divided by N too: `scale_local_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from tfdist._types import Gradient, KerasLayer, KerasVariable


class LocalVariables:
    """The set of local variables, and the scaling of their gradients.

    Args:
      api_name: the name of the function that the user called, for messages.
      scale: divide their gradients by the number of ranks.
    """

    def __init__(self, api_name: str, scale: bool = True) -> None:
        if not isinstance(scale, bool):
            raise TypeError(
                f"{api_name}: expected scale_local_gradients to be True or False, received "
                f"{scale!r}"
            )
        self._api_name = api_name
        self._scale = scale
        self._variables: dict[object, KerasVariable] = {}
        self._layers: list[KerasLayer] = []
        self._saved: tuple[str, ...] = ()

    def register(self, variable: KerasVariable) -> None:
        """Makes a variable local.

        Raises:
          TypeError: it is neither a variable nor a tensor.
        """
        self._variables[self._identity(variable)] = variable

    def register_layers(self, layers: Sequence[KerasLayer]) -> None:
        """Makes all trainable weights of layers local, also of layers not yet built."""
        self._layers.extend(layers)

    def expect(self, names: Iterable[str]) -> None:
        """Gives the names of variables that were local when an optimizer was saved.

        They have to be registered again.
        """
        self._saved = tuple(names)

    def names(self) -> list[str]:
        """The names of all local variables, in the order of registration."""
        known = [_name(variable) for variable in self._all().values()]
        return list(self._saved) if len(known) < len(self._saved) else known

    def positions(self, sources: Sequence[KerasVariable]) -> set[int]:
        """Returns which of `sources` are local.

        Raises:
          ValueError: fewer variables are local than when the optimizer was saved.
        """
        local = self._all()
        # Counted, not compared by name: Keras gives some variables another path when it loads them.
        if len(local) < len(self._saved):
            raise ValueError(
                f"{self._api_name}: expected register_local_var to be called, before training "
                f"continues, for the {len(self._saved)} variables that were local to each rank "
                f"when this optimizer was saved, {', '.join(self._saved)}; received {len(local)}"
            )
        if not local:
            return set()
        return {i for i, source in enumerate(sources) if self._identity(source) in local}

    def keep(self, gradient: Gradient | None, ranks: int | tf.Tensor) -> Gradient | None:
        """Returns the gradient that this rank applies to a local variable."""
        if gradient is None or not self._scale:
            return gradient
        ranks = tf.cast(ranks, gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / ranks, gradient.indices, gradient.dense_shape)
        return gradient / ranks

    def _all(self) -> dict[object, KerasVariable]:
        weights = [weight for layer in self._layers for weight in layer.trainable_weights]
        return self._variables | {self._identity(weight): weight for weight in weights}

    def _identity(self, source: KerasVariable | tf.Tensor) -> object:
        variable = variable_of(source)
        if variable is None and not isinstance(source, tf.Tensor):
            raise TypeError(
                f"{self._api_name}: expected a variable for a local one, received {source!r}"
            )
        return (source if variable is None else variable).ref()


def variable_of(source: object) -> tf.Variable | None:
    """The `tf.Variable` of a Keras variable, or `source` itself; `None` if it is neither."""
    source = source if isinstance(source, tf.Variable) else getattr(source, "value", None)
    return source if isinstance(source, tf.Variable) else None


def check_layers(
    local_layers: KerasLayer | Iterable[KerasLayer] | None, api_name: str
) -> list[KerasLayer]:
    """Returns one layer or several as a list.

    Raises:
      TypeError: something is no layer of Keras 3 or tf_keras.
    """
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, Iterable) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise TypeError(f"{api_name}: expected layers as local_layers, received {layer!r}")
    return layers


def _name(variable: KerasVariable) -> str:
    return getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor"
