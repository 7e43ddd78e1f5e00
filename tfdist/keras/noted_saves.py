"""The saves of a checkpoint callback on a worker that writes no files."""

from __future__ import annotations

from typing import Any

from tfdist._types import FilePath, KerasModel


class NotedSaves:
    """Stands for a model in a callback: it notes how it is to be saved, and writes nothing.

    Args:
      model: the model, which answers everything else.

    Attributes:
      noted: of each save the name of the model's method, and its options.
    """

    def __init__(self, model: KerasModel) -> None:
        self._model = model
        self.noted: list[tuple[str, dict[str, object]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: FilePath, **options: object) -> None:
        """As `keras.Model.save`."""
        self.noted.append(("save", options))

    def save_weights(self, filepath: FilePath, **options: object) -> None:
        """As `keras.Model.save_weights`."""
        self.noted.append(("save_weights", options))
