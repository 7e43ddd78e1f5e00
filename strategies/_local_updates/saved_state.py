"""The state of local updates in checkpoints: values of all workers, by name.

    0/anchor/2           the anchor of the third variable that a group trains
    0/value/2            a worker's copy of it
    0/slot/5             a variable of the worker's optimizer
    0/outer/1            a variable of the outer optimizer
    0/dual/2             a variable of the rule
    0/variables          the positions of the variables that the group trains
    0/are_reset/0        whether the optimizer's variables are to be what they were at first
    0/round/0/rows       a counter of the group's rounds
    0/round/0/groups     the positions of the groups that end their rounds together
    0/feedback/2/right   what a compressor keeps for the pseudo-gradient
    asked                the steps since the workers asked each other for more data

The first number is the position, among the variables of the model, of the first variable that the
group trains. Names of variables would differ between processes that have made other models before.
Values have the shape [workers, ...], or [1, ...] if they are equal on all workers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import ops

Values = dict[str, np.ndarray]

# Parts of the names of values that are equal on all workers.
_SHARED = {
    *("anchor", "outer", "steps", "steps_in_all", "norms", "right"),
    *("variables", "groups", "are_reset", "asked"),
}
# Values of which the workers' sum counts: rows of a round, and error feedback's unsent rest.
_SUMMED = {"rows", "residual"}


def values_of_all(
    variables: dict[str, tf.Variable | tf.Tensor], communicator: ops.Communicator | None
) -> Values:
    """The values of variables on all workers, which all call this with the same names.

    Args:
      variables: by names of this module; positions are tensors.
      communicator: the workers; `None` if there is one, or only this one's values are wanted.
    """
    local = {name: variable.numpy()[np.newaxis] for name, variable in variables.items()}
    own = {name: value for name, value in local.items() if not _is_shared(name)}
    if communicator is None or not own:
        return local
    content = np.frombuffer(b"".join(value.tobytes() for value in own.values()), np.uint8)
    gathered = ops.all_gather(
        tf.constant(content)[tf.newaxis], communicator, label="state of local updates"
    ).numpy()
    at = 0
    for name, value in own.items():
        part = np.ascontiguousarray(gathered[:, at : at + value.nbytes])
        local[name] = part.view(value.dtype).reshape(len(gathered), *value.shape[1:])
        at += value.nbytes
    return local


def values_of_one(values: Values, rank: int, workers: int) -> Values:
    """The values of one worker.

    If another number of workers was saved, each gets the mean of floating-point numbers: the mean
    of `ADMM`'s dual variables is 0, as it has to be. Of what is summed each gets its part.
    """

    def value_of(name: str, of_all: np.ndarray) -> np.ndarray:
        if _is_shared(name):
            return of_all[0]
        if len(of_all) == workers:
            return of_all[rank]
        if _SUMMED & set(name.split("/")):
            return (of_all.sum(0) / workers).astype(of_all.dtype)
        is_float = np.issubdtype(of_all.dtype, np.floating)
        return of_all.mean(0).astype(of_all.dtype) if is_float else of_all[0]

    return {name: value_of(name, of_all) for name, of_all in values.items()}


def anchors_in(values: Values) -> list[np.ndarray]:
    """The anchors of a group, in the order of its variables; of one worker."""
    return [value for name, value in values.items() if name.split("/")[-2:-1] == ["anchor"]]


def with_positions(position: int, values: Values) -> Values:
    """The values of a group, with the positions that files of earlier versions leave out.

    Args:
      position: of the group's first variable.
      values: of one worker.
    """
    count = len(anchors_in(values))
    return {
        "variables": np.arange(position, position + count),
        **{
            name.replace("/steps", "/groups"): np.array([position])
            for name in values
            if re.fullmatch(r"round/\d+/steps", name)
        },
        **values,
    }


class LocalState(tf.train.experimental.PythonState):
    """The state of local updates in a `tf.train.Checkpoint`.

    Args:
      save: returns the values of all workers.
      restore: takes them.
    """

    def __init__(self, save: Callable[[], Values], restore: Callable[[Values], None]) -> None:
        super().__init__()
        self._save = save
        self._restore = restore

    def serialize(self) -> bytes:
        """The values as an archive of NumPy."""
        values = self._save()
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f"value_{i}": v for i, v in enumerate(values.values())}
        np.savez(buffer, names=np.array(json.dumps([*values])), **arrays)
        return buffer.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Restores what `serialize` has returned."""
        with np.load(io.BytesIO(string_value), allow_pickle=False) as found:
            names = json.loads(str(found["names"]))
            self._restore({name: found[f"value_{i}"] for i, name in enumerate(names)})


def _is_shared(name: str) -> bool:
    return bool(_SHARED & set(name.split("/")))
