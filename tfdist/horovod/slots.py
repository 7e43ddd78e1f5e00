"""The slot variables of an optimizer, such as the momentum of a variable.

Neither Keras has a public API for them. All optimizers but tf_keras.optimizers.legacy keep lists of
slots, in which a variable's slot is at the variable's index.
"""

from __future__ import annotations

from tfdist._types import KerasOptimizer, KerasVariable
from tfdist.horovod.local_variables import variable_of


def variables_of(optimizer: KerasOptimizer) -> list:
    """All variables of an optimizer of Keras 3 or tf_keras."""
    variables = optimizer.variables  # a method of the optimizers of tf_keras.optimizers.legacy
    return list(variables() if callable(variables) else variables)


def identity(variable: KerasVariable) -> object:
    """A key that is the same for a Keras variable and TensorFlow's behind it."""
    found = variable_of(variable)
    assert found is not None
    return found.ref()


def slots_of(optimizer: KerasOptimizer, variable: KerasVariable) -> list:
    """Returns the optimizer's variables that belong to one variable of the model.

    Args:
      optimizer: of Keras 3 or tf_keras, built.
      variable: any; a variable that the optimizer does not update has no slots.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    by_variable = getattr(optimizer, "_slots", None)
    if isinstance(by_variable, dict):  # tf_keras.optimizers.legacy
        found = variable_of(variable)
        assert found is not None
        return list(by_variable.get(found._unique_id, {}).values())
    position, count = _position(optimizer, variable)
    if position is None:
        return []
    known = {identity(slot) for slot in variables_of(optimizer)}
    columns = [
        column
        for name, column in vars(optimizer).items()
        if name not in ("_variables", "_trainable_variables")
        and isinstance(column, list)
        and len(column) == count
    ]
    slots = [column[position] for column in columns]
    return [s for s in slots if variable_of(s) is not None and identity(s) in known]


def _position(optimizer: KerasOptimizer, variable: KerasVariable) -> tuple[int | None, int]:
    """The index of a variable's slots in the optimizer's lists, and the length of these lists."""
    if hasattr(optimizer, "_index_dict"):  # tf_keras
        positions = optimizer._index_dict
        return positions.get(optimizer._var_key(variable)), len(positions)
    trained = [identity(other) for other in getattr(optimizer, "_trainable_variables", ())]
    own = identity(variable)
    return (trained.index(own) if own in trained else None), len(trained)
