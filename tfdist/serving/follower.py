"""A loaded model that follows the training of its variables."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError
from tfdist.serving.tables import publication
from tfdist.serving.tables.local_tables import LocalTables
from tfdist.serving.tables.publication import Publication

_log = logging.getLogger("tfdist.serving")
# A part of a variable that is split by rows, as `Placement` names it.
_PART = re.compile(r"(.+)/rows_(\d{1,9})_of_(\d{1,9})")


class TableFollower:
    """Takes up a training's later variables, and rows, in a model of `tfdist.serving.load`.

    Rows on servers are those servers' affair (`tfdist ps serve --follow`); a model that was loaded
    with `tables=` has its rows in this process, and the follower takes them up, too. Each variable
    and each row changes at once, but not all together: a request meanwhile may see some of them
    changed.

    Args:
      model: of `tfdist.serving.load`; it may answer meanwhile.
      folder: the folder of `tfdist ps follow`, or the training's `checkpoint_dir`.
      every: seconds between two looks for a later snapshot. 0: only `update` looks.

    Raises:
      ValueError: the model is another one, or has no variable from parameter servers.
      CheckpointError: the folder has no complete snapshot, or it lacks a variable of the model, or
        has one of another size.

    Example:

    ```python
    model = tfdist.serving.load("model", servers="host1:7000,host2:7000")
    follower = tfdist.serving.TableFollower(model, "published")
    ```
    """

    def __init__(self, model: Any, folder: str, every: float = 5.0) -> None:
        if not hasattr(model, "table_variables"):
            raise ValueError(
                f"TableFollower: expected a model of tfdist.serving.load, received {model!r}"
            )
        self._folder = folder
        self._model = weakref.ref(model)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._taken: Publication | None = None
        self._told = ""
        self.update()
        if every > 0:
            threading.Thread(target=self._keep_up, args=(every,), daemon=True).start()

    @property
    def number(self) -> int:
        """The number of the snapshot whose variables the model has."""
        return 0 if self._taken is None else self._taken.number

    def update(self) -> bool:
        """Takes up the latest snapshot; returns whether it is later than the model's.

        Raises:
          CheckpointError: a file is missing or damaged, or does not fit the model: nothing of it
            was taken.
        """
        with self._lock:
            model = self._model()
            found = publication.latest(self._folder)
            if model is None or (self._taken is not None and not found.is_after(self._taken)):
                return False
            variables = _variables_of(model, found)
            if isinstance(model.table_connection, LocalTables):
                model.table_connection.follow(found)
            for variable, value in variables:
                variable.assign(value)
            self._taken = found
            return True

    def close(self) -> None:
        """Ends the following; the model keeps what it has."""
        self._closed.set()

    def _keep_up(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            if self._model() is None:
                return
            try:
                self.update()
                self._told = ""
            except (CheckpointError, tf.errors.OpError, OSError) as error:
                if str(error) != self._told:
                    self._told = str(error)
                    _log.error(
                        "TableFollower: the model stays at snapshot %d, and refuses a later one: "
                        "%s",
                        self.number,
                        error,
                    )


def _variables_of(model: Any, found: Publication) -> list[tuple[tf.Variable, np.ndarray]]:
    """Returns the model's variables with their values in a snapshot."""
    arrays = _joined(found.variables())
    values = []
    for name, variable in model.table_variables.items():
        value = arrays.get(name)
        if value is None or value.size != variable.shape.num_elements():
            received = "none" if value is None else f"{value.size} numbers"
            raise CheckpointError(
                f"snapshot {found.number} in {found.root}: expected variable {name!r} of shape "
                f"{variable.shape}, as the model has it, received {received}"
            )
        values.append((variable, value.reshape(variable.shape)))
    return values


def _joined(shards: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns whole variables, flat, by name."""
    whole = dict(shards)
    parts: dict[str, dict[int, np.ndarray]] = {}
    counts: dict[str, int] = {}
    for name, array in shards.items():
        match = _PART.fullmatch(name)
        if match:
            parts.setdefault(match[1], {})[int(match[2])] = array
            counts[match[1]] = int(match[3])
    for name, of_name in parts.items():
        if len(of_name) == counts[name]:
            whole[name] = np.concatenate([of_name[i] for i in sorted(of_name)])
    return whole
