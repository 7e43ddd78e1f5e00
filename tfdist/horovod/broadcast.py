"""The callback that gives all ranks the same initial variables."""

from __future__ import annotations

from collections.abc import Iterable

from tfdist._types import KerasVariable
from tfdist.horovod.local_variables import variable_of
from tfdist.horovod.slots import identity, slots_of, variables_of
from tfdist.job.variables import broadcast_variables
from tfdist.keras.callback import Callback


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the weights of one rank, and its optimizer's state, before the first step.

    Needed if ranks could begin with different values: random weights, or a checkpoint that only
    one rank has read. Random seeds, such as a `Dropout` layer's, stay each rank's own.

    A model that does not know its input's shape has no weights before its first step. It gets them
    after that step, as with Horovod: the gradients of this one step are of different weights.

    Example:
      model.fit(data, callbacks=[tfdist.callbacks.BroadcastGlobalVariablesCallback(0)])
    """

    def __init__(
        self, root_rank: int = 0, local_variables: Iterable[KerasVariable] | None = None
    ) -> None:
        """Makes the callback.

        Args:
          root_rank: the rank whose values are taken.
          local_variables: variables of the model that keep each rank's own values, with their
            optimizer slots, such as momentum. Their shapes may differ between ranks.

        Raises:
          TypeError: something in `local_variables` is no variable.
        """
        super().__init__()
        self._local = list(local_variables or ())
        for variable in self._local:
            if variable_of(variable) is None:
                raise TypeError(
                    f"tfdist.callbacks.{type(self).__name__}: expected variables as "
                    f"local_variables, received {variable!r}"
                )
        self._root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Broadcasts the variables, unless an earlier `fit` has."""
        if not self._done and self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Broadcasts variables that did not exist before the first step."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        optimizer = self.model.optimizer
        build = getattr(optimizer, "build", None)
        if build is not None and not getattr(optimizer, "built", False):
            build(self.model.trainable_variables)
        everything = [*self.model.weights, *variables_of(optimizer)]
        slots = [slot for variable in self._local for slot in slots_of(optimizer, variable)]
        local = {identity(variable) for variable in (*self._local, *slots)}
        broadcast_variables([v for v in everything if identity(v) not in local], self._root_rank)
