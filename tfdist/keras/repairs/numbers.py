"""Repairs of variables that exist once per replica, where Python asks them for a number.

`__bool__` stays as it is: TensorFlow itself asks whether there is such a variable by its truth.
"""

from __future__ import annotations

import numpy as np

from tfdist.internals.tensorflow import DistributedVariable
from tfdist.keras.registry import repairs


@repairs(DistributedVariable, "__float__", adds=True)
def read_as_float(original, self):
    """`float(optimizer.learning_rate)` fails under a strategy, and `"%.2f" %` and `math.log`."""
    return float(self.numpy())


@repairs(DistributedVariable, "__int__", adds=True)
def read_as_int(original, self):
    """`int(optimizer.iterations)` fails under a strategy, and `"%d" %`."""
    return int(self.numpy())


@repairs(DistributedVariable, "__complex__", adds=True)
def read_as_complex(original, self):
    """`complex(variable)` fails under a strategy."""
    return complex(self.numpy())


@repairs(DistributedVariable, "__array__", adds=True)
def read_as_array(original, self, dtype=None, copy=None):
    """`np.asarray(variable)` fails under a strategy for a scalar that is a sum over replicas."""
    return np.asarray(self.numpy(), dtype=dtype)  # which is a copy already
