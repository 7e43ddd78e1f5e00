"""Keras 3: calls of layers, losses and metrics in them, synchronized moments."""

from __future__ import annotations

from keras import tree
from keras.layers import BatchNormalization, Layer

from tfdist.internals.keras_3 import Variable, in_stateless_scope
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
    """The loss that a layer adds is 0 for a substitute row."""
    if in_stateless_scope() or calls.substitution() is None:
        return original(self, loss)
    return original(self, tree.map_structure(calls.no_value, loss))


@hooks(Variable, "assign")
def keep_sums(original, self, value):
    """A metric that a layer updates does not count a substitute row."""
    # Variables of another kind have the same value on all replicas, which all compute.
    if self.aggregation != "sum" or calls.substitution() is None or in_stateless_scope():
        return original(self, value)
    value = self._convert_to_tensor(value, dtype=self._dtype)
    return original(self, calls.unchanged(self, value))


@hooks(BatchNormalization, "_moments")
def leave_out_substitutes(original, self, inputs, mask):
    """Synchronized `BatchNormalization` has the statistics of all replicas' own rows."""
    if self.synchronized and not in_stateless_scope():
        inputs, mask = calls.own_rows(inputs), calls.own_rows(mask)
    return original(self, inputs, mask)
