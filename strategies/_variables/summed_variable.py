"""Variables of an elastic job whose value is the sum over replicas."""

from __future__ import annotations

import tensorflow as tf

from tfdist._types import TensorLike
from tfdist.internals.tensorflow import SyncOnReadVariable, enter_or_assert_strategy, values_util


class SummedVariable(SyncOnReadVariable):
    """A variable of which this worker's replicas together have the sum over all workers' replicas.

    That is so between two steps; so reading it needs no other worker. TensorFlow divides what is
    assigned from outside of a step by the number of all replicas, which a job begins with.
    """

    def assign(
        self,
        value: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> tf.Tensor | tf.Operation | None:
        """Assigns a replica's own value, or outside of a replica the sum."""
        if not values_util.is_saving_non_distributed():
            with enter_or_assert_strategy(self._distribute_strategy):
                is_outside = tf.distribute.in_cross_replica_context()
                if is_outside and not values_util.in_replica_update_context():
                    return self._assign_sum(value, read_value)
        return super().assign(value, use_locking, name, read_value)

    def _assign_sum(self, value: TensorLike, read_value: bool) -> tf.Tensor | tf.Operation | None:
        values_util.mark_as_unsaveable()
        first, *others = self.values
        update = tf.group(
            first.assign(value, read_value=False),
            *(part.assign(tf.zeros_like(part), read_value=False) for part in others),
        )
        if not read_value:
            return update
        with tf.control_dependencies([] if update is None else [update]):
            return self.read_value()
