"""The description of a SavedModel whose rows are on servers: a JSON file beside it.

```
  folder/assets.extra/tfdist.json
    {"format": 1,
     "tables": {"users": 16},                  the width of each table's rows, by its name
     "variables": ["dense/kernel", ...]}       the servers' names of the model's variables
```

The SavedModel has a collection of one variable, `CLIENT`, a number to which a process assigns its
connections. Its `variables` are in the order of "variables", in which a variable that no server has
is null.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import tensorflow as tf

CLIENT = "tfdist_client"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class ServedModelFile:
    """The tables that a SavedModel looks up, and the origin of its variables.

    Attributes:
      tables: the width of each table's rows, by its name.
      variables: the servers' name of each of the SavedModel's `variables`, or `None`.
    """

    tables: dict[str, int]
    variables: Sequence[str | None] = ()

    def write(self, folder: str) -> None:
        """Writes the description of the SavedModel in a folder."""
        tf.io.gfile.makedirs(f"{folder}/assets.extra")
        with tf.io.gfile.GFile(_path(folder), "w") as file:
            content = {"tables": self.tables, "variables": list(self.variables)}
            file.write(json.dumps({"format": _FORMAT, **content}))

    @staticmethod
    def is_in(folder: str) -> bool:
        """Whether a folder has such a description."""
        return bool(tf.io.gfile.exists(_path(folder)))

    @classmethod
    def read(cls, folder: str) -> ServedModelFile:
        """Reads the description of the SavedModel in a folder.

        Raises:
          ValueError: the folder has no SavedModel, or one without such a description.
        """
        if not tf.io.gfile.exists(f"{folder}/saved_model.pb"):
            raise ValueError(f"expected the folder of a SavedModel, received {folder!r}")
        if not cls.is_in(folder):
            raise ValueError(
                f"the SavedModel in {folder!r} looks up no served tables: expected one of "
                "tfdist.export_for_serving(model, path, tables='served'); another one is loaded "
                "with tf.saved_model.load"
            )
        try:
            with tf.io.gfile.GFile(_path(folder), "r") as file:
                return _parsed(json.loads(file.read()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{_path(folder)} is damaged: {error}") from None


def _path(folder: str) -> str:
    return f"{folder}/assets.extra/tfdist.json"


def _parsed(content: dict) -> ServedModelFile:
    if content["format"] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, received {content['format']!r:.20}")
    tables = {str(name): int(width) for name, width in content["tables"].items()}
    names = [None if name is None else str(name) for name in content["variables"]]
    return ServedModelFile(tables, names)
