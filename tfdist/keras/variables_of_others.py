"""Variables that are trained in another scope than the one in which they were made."""

from __future__ import annotations

from tfdist._types import KerasModel
from tfdist.keras.workers import has_peers, is_on_servers, is_ours, is_table, trains_on_servers


def refuse_variables_of_others(model: KerasModel) -> None:
    """Refuses to train variables that the model's strategy does not keep equal.

    Raises:
      ValueError: a variable was made outside of the scope, or in another one.
    """
    strategy = model.distribute_strategy
    is_shared = has_peers(strategy) or trains_on_servers(strategy)
    for variable in model.weights:
        value = getattr(variable, "_value", variable)
        # A variable that is not initialized yet is made by the first step.
        if value is None or is_on_servers(value) or is_table(value):
            continue
        name = getattr(variable, "path", variable.name)
        owner = getattr(value, "distribute_strategy", None)
        if owner is None and is_shared:
            raise ValueError(
                f"model {model.name!r}: expected variables of {strategy!r}, but {name!r} was made "
                "outside its scope: make all layers of the model in `with strategy.scope():`"
            )
        if is_ours(owner) and owner is not strategy:
            raise ValueError(
                f"model {model.name!r}: was made outside the scope of {owner!r}, to which its "
                f"variable {name!r} belongs: make the model in its `with strategy.scope():` too"
            )
