"""Starting from another model's values: `warm_start_from`, and the weights of a Keras model.

TensorFlow's `warm_start` replaces the variables' initializers by operations that read a checkpoint.
A job cannot use these: by the initializers all workers get the chief's or the servers' values, and
`model_to_estimator` gives the checkpoint to the chief alone. Therefore the variables keep their
initializers, and the chief reads the checkpoint afterwards. How the other workers then get its
values depends on the strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import WarmStartSettings

v1 = tf.compat.v1
# The attributes of a variable that `warm_start` changes.
_CHANGED = ("_initializer_op", "_initial_value")


def warm_start(settings: WarmStartSettings) -> tf.Operation:
    """Adds an operation to the default graph that reads variables from a checkpoint.

    Args:
      settings: a `WarmStartSettings`: the checkpoint, and the selection of its values.

    Returns:
      The operation, for a session whose variables are initialized.
    """
    variables = v1.global_variables()
    before = [{name: vars(v)[name] for name in _CHANGED if name in vars(v)} for v in variables]
    v1.train.warm_start(*settings)
    reads = []
    for variable, attributes in zip(variables, before, strict=True):
        read = vars(variable).get("_initializer_op")
        if read is not attributes.get("_initializer_op"):
            reads.append(read)
        for name in _CHANGED:
            vars(variable).pop(name, None)
        vars(variable).update(attributes)
    return tf.group(reads)
