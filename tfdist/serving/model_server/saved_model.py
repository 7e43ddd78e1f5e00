"""One version of a model: a SavedModel in memory, with its signatures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tfdist.serving.model_server.call_error import CallError
from tfdist.serving.model_server.signature import Signature

# Reads a SavedModel; its tables are on servers at the addresses, if there are any.
Loader = Callable[[str, Sequence[str]], Any]
_FILES = ("saved_model.pb", "saved_model.pbtxt")
# TensorFlow's own, with which it finds the operation that creates variables.
_NO_SIGNATURES = ("__saved_model_init_op", "__saved_model_train_op")


class LoadedModel:
    """A SavedModel whose signatures can be called by several threads.

    Args:
      folder: of the SavedModel.
      version: its number.
      loader: reads it.
      tables: the addresses of its tables' servers, as "host:port".

    Attributes:
      version: the number.
      definitions: its signatures, as the SavedModel describes them.
      signatures: the same, by name.

    Raises:
      Exception: of any kind: the SavedModel cannot be loaded.
    """

    def __init__(
        self, folder: Path, version: int, loader: Loader, tables: Sequence[str] = ()
    ) -> None:
        self.version = version
        self.definitions = _definitions(folder)
        self.signatures = {name: Signature.of(name, d) for name, d in self.definitions.items()}
        self._model = loader(str(folder), tables)
        self._functions = dict(self._model.signatures)
        if not self._functions:
            raise ValueError(
                f"{folder}: expected a SavedModel with signatures, received one without; give "
                "tf.saved_model.save the argument signatures"
            )

    def signature(self, name: str) -> Signature:
        """Returns a signature; raises `CallError` if there is none of the name."""
        if name not in self._functions:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f'Serving signature key "{name}" not found; expected one of '
                f"{sorted(self._functions)}",
            )
        return self.signatures[name]

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature.

        Args:
          name: of the signature.
          inputs: with its names, types and shapes.

        Returns:
          Its outputs by name.

        Raises:
          Exception: of any kind, by the model.
        """
        signature = self.signatures[name]
        tensors = {
            key: tf.constant(values, signature.inputs[key].dtype) for key, values in inputs.items()
        }
        outputs = self._functions[name](**tensors)
        return {key: _array(outputs[key]) for key in signature.outputs}

    def close(self) -> None:
        """Frees the model; no request may use it any more."""
        close = getattr(self._model, "close", None)
        if callable(close):
            close()
        self._functions.clear()
        self._model = None


def is_saved_model(folder: Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return any((folder / name).is_file() for name in _FILES)


def stamp_of(folder: Path) -> tuple:
    """Returns a value that differs as soon as a file of a SavedModel is another, or is longer."""
    found = []
    for parent, folders, files in os.walk(folder):  # leaves out what is removed meanwhile
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            try:
                about = os.stat(path)
            except OSError:
                continue  # just removed
            found.append((path, about.st_mtime_ns, about.st_size))
    return tuple(sorted(found))


def _array(output: tf.Tensor) -> np.ndarray:
    values = output.numpy()
    # A scalar string is a Python object.
    return np.array(values, object) if isinstance(values, bytes) else np.asarray(values)


def _definitions(folder: Path) -> dict[str, SignatureDef]:
    """Reads the signatures of the graph that is for serving."""
    message = SavedModel()
    binary, text = (folder / name for name in _FILES)
    try:
        if binary.is_file():
            message.ParseFromString(binary.read_bytes())
        else:
            text_format.Parse(text.read_text(), message)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{folder}: expected a SavedModel, received a damaged one: {error}"
        ) from None
    graphs = [g for g in message.meta_graphs if "serve" in g.meta_info_def.tags]
    if not graphs:
        raise ValueError(
            f"{folder}: expected a SavedModel with a graph tagged 'serve', received the tags "
            f"{[list(g.meta_info_def.tags) for g in message.meta_graphs]}"
        )
    return {n: d for n, d in graphs[0].signature_def.items() if n not in _NO_SIGNATURES}
