"""The variables of `CentralStorageStrategy`."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.tensorflow import ps_values, values_util


class CentralVariable(ps_values.AggregatingVariable):
    """A variable that exists once and that all replicas share.

    The values that replicas assign are aggregated and assigned once. With aggregation NONE the
    first replica's value is assigned: under a mirrored strategy replicas that do the same would
    write this value to every copy. TensorFlow refuses such writes.
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
        """The initializer op, which `tf.compat.v1.train.warm_start` may replace."""
        return self.__dict__.get("_initializer_op") or super().initializer

    def scatter_add(self, *args, **kwargs):
        return self._scatter("scatter_add", *args, **kwargs)

    def scatter_sub(self, *args, **kwargs):
        return self._scatter("scatter_sub", *args, **kwargs)

    def scatter_update(self, *args, **kwargs):
        return self._scatter("scatter_update", *args, **kwargs)

    # Without these methods an update of rows would reach the shared variable once per replica.
    def _scatter(self, name: str, *args: object, **kwargs: object) -> tf.Variable | None:
        def scatter(variable, *args, read_value=True, **kwargs):
            del read_value  # an argument of assignments, which TensorFlow always passes
            return getattr(variable, name)(*args, **kwargs)

        return self._assign_func(*args, f=scatter, **kwargs)
