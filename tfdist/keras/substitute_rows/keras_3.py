"""Replaced functions of Keras 3: layer calls, losses of layers, assignments, synchronized moments."""

from __future__ import annotations

from keras import tree
from keras.layers import BatchNormalization, Layer
from keras.src.backend import Variable
from keras.src.backend.common.stateless_scope import in_stateless_scope

from tfdist.keras.registry import hooks
from tfdist.keras.substitute_rows import calls


@hooks(Layer, "__call__")
def substitute_a_row(original, self, *args, **kwargs):
    """A replica without rows computes on a substitute row; see `substitute_rows`."""
    if in_stateless_scope():
        return original(self, *args, **kwargs)
    return calls.substituted(lambda *a, **k: original(self, *a, **k), args, kwargs)


@hooks(Layer, "add_loss")
def discount_losses(original, self, loss):
    """The loss that a layer adds is 0 if it is that of a substitute row."""
    if in_stateless_scope() or calls.substitution() is None:
        return original(self, loss)
    return original(self, tree.map_structure(calls.no_value, loss))


@hooks(Variable, "assign")
def keep_values(original, self, value):
    """A layer that computes on a substitute row leaves its variables as they are.

    States of random generators advance, as those of the other replicas do.
    """
    if calls.substitution() is None or in_stateless_scope() or self.name == "seed_generator_state":
        return original(self, value)
    value = self._convert_to_tensor(value, dtype=self._dtype)
    return original(self, calls.unchanged(self, value))


@hooks(BatchNormalization, "_moments")
def leave_out_substitutes(original, self, inputs, mask):
    """Synchronized `BatchNormalization` has the statistics of all replicas' own rows."""
    current = calls.substitution()
    if current is None or not self.synchronized or in_stateless_scope():
        return original(self, inputs, mask)
    current.of_all.update(id(variable) for variable in self.non_trainable_variables)
    return original(self, calls.own_rows(inputs), calls.own_rows(mask))
