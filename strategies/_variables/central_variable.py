"""The variables of central storage."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.distribute import ps_values, values_util


class CentralVariable(ps_values.AggregatingVariable):
    """A variable that exists once and that all replicas share.

    What the replicas assign is aggregated and assigned once. With aggregation NONE the first
    replica's value is taken: that is what each replica's copy would be under a mirrored strategy,
    where replicas that do the same thing write the same. TensorFlow refuses such writes.
    """

    def _assign_func(self, *args, **kwargs):
        replica = tf.distribute.get_replica_context()
        if replica is None or self.aggregation != tf.VariableAggregation.NONE:
            return super()._assign_func(*args, **kwargs)
        assign = kwargs.pop("f")
        if values_util.get_current_replica_id_as_int() == 0:
            return assign(self.get(), *args, **kwargs)
        return self.get().read_value() if kwargs.get("read_value", True) else None

    @property
    def initializer(self):
        """What initializes it, which `tf.compat.v1.train.warm_start` replaces."""
        return self.__dict__.get("_initializer_op") or super().initializer

    def scatter_add(self, *args, **kwargs):
        return self._scatter("scatter_add", *args, **kwargs)

    def scatter_sub(self, *args, **kwargs):
        return self._scatter("scatter_sub", *args, **kwargs)

    def scatter_update(self, *args, **kwargs):
        return self._scatter("scatter_update", *args, **kwargs)

    # Without these a replica's update of rows would reach the shared variable once per replica.
    def _scatter(self, name: str, *args, **kwargs):
        def scatter(variable, *args, read_value=True, **kwargs):
            del read_value  # an argument of assignments, which TensorFlow passes to all
            return getattr(variable, name)(*args, **kwargs)

        return self._assign_func(*args, f=scatter, **kwargs)
