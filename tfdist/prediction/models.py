"""Models that predict: Keras models, exported models, and functions of a batch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist._types import Nested
from tfdist.errors import PredictionError, TfdistError
from tfdist.prediction import fingerprints
from tfdist.prediction.batches import rows_of
from tfdist.ps.export.served_models import ServedModelFile
from tfdist.reasons import one_line
from tfdist.serving.load import load

_ONLY = "prediction"  # the name of an output without one
_TABLES_WAIT = 60.0  # seconds for servers of tables that still start


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A model.

    Attributes:
      name: for messages.
      fingerprint: changes with the model.
      inputs: the names of its inputs; `None` if they have none.
      call: returns the outputs of a batch.
      needs_graph: whether `call` is made a graph, for all batch sizes.
    """

    name: str
    fingerprint: str
    inputs: Sequence[str] | None
    call: Callable[[Any], Nested]
    needs_graph: bool


class Forward:
    """The outputs of batches, by name.

    Args:
      predictor: the model.
      spec: types and shapes of a batch of features.
      keep: the names of features that are no inputs of the model, unless it names them.

    Raises:
      PredictionError: the model does not take such a batch.
    """

    def __init__(self, predictor: Predictor, spec: Nested, keep: Sequence[str]) -> None:
        self._predictor, self._keep = predictor, keep
        self._call = predictor.call
        self._select = _selection(predictor, spec, keep)
        if predictor.needs_graph:
            self._call = self._graph(self._select(spec))

    def __call__(self, features: Nested) -> dict[str, np.ndarray]:
        """Returns the kept features and the outputs, one row for each row of the features.

        Raises:
          tf.errors.OpError: the model fails with this batch.
          PredictionError: an output has another number of rows.
        """
        outputs = _named(self._call(self._select(features)))
        if not outputs:
            raise PredictionError(
                f"{self._predictor.name}: expected at least one output, received none"
            )
        rows = rows_of(features)
        columns = {name: _array(features[name]) for name in self._keep}
        for name, value in outputs.items():
            if name in columns:
                raise PredictionError(
                    f"{self._predictor.name}: expected outputs of other names than keep="
                    f"{list(self._keep)}, received {name!r}: rename the feature in map"
                )
            columns[name] = _array(value)
            if columns[name].shape[:1] != (rows,):
                raise PredictionError(
                    f"{self._predictor.name}: expected {rows} rows of output {name!r}, one for "
                    f"each record, received the shape {columns[name].shape}"
                )
        return columns

    def _graph(self, spec: Nested) -> Callable[[Any], Nested]:
        """Returns the model as one graph: with several, results could differ between workers."""
        try:
            return tf.function(self._predictor.call, autograph=False).get_concrete_function(spec)
        except Exception as error:
            raise PredictionError(
                f"{self._predictor.name}: expected a model that takes the batches of map, which "
                f"are {spec}: {one_line(error)}"
            ) from error


def predictor_of(
    model: Any, signature: str | None = None, tables: Sequence[str] | None = None
) -> Predictor:
    """Returns a model that predicts.

    Args:
      model: a Keras model, the path of a SavedModel or of a `.keras` file, or a function.
      signature: of a SavedModel; `None`: "serving_default".
      tables: "host:port" of all servers of a SavedModel's tables; `None`: it has its rows.

    Raises:
      PredictionError: there is no such model or signature.
      ClusterConfigError: the servers refuse this process, or lack a table.
      tf.errors.UnavailableError: the servers do not answer.
    """
    if isinstance(model, str | os.PathLike):
        return _loaded(Path(model), signature, tables)
    if tables is not None:
        raise PredictionError(
            "tables: expected the folder of a SavedModel whose tables are on servers as the model, "
            f"received {model!r:.200}"
        )
    if signature is not None:
        raise PredictionError(f"signature={signature!r}: expected the folder of a SavedModel")
    if isinstance(model, keras.Model) or hasattr(model, "get_weights"):
        name, fingerprint = f"model {model.name!r}", fingerprints.of_keras(model)
        return _of_keras(_with_common_values(model, name), name, fingerprint)
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        return Predictor(f"function {name!r}", fingerprints.of_function(model), None, model, False)
    raise PredictionError(
        "model: expected a Keras model, a SavedModel's folder, a .keras file or a function of a "
        f"batch, received {model!r:.200}"
    )


def _with_common_values(model: Any, name: str) -> Any:
    """Returns a model whose variables each worker can read by itself.

    Under a strategy each replica has moving averages of its own, and a read of them is a collective
    that returns their mean.

    Raises:
      PredictionError: the model has such variables, and cannot be copied.
    """
    values = (getattr(weight, "value", weight) for weight in model.weights)
    on_read = tf.VariableSynchronization.ON_READ
    if not any(getattr(value, "synchronization", None) == on_read for value in values):
        return model
    weights = model.get_weights()
    try:
        copy = keras.models.clone_model(model)
        copy.set_weights(weights)
    except Exception as error:
        raise PredictionError(
            f"{name}: expected a model that can be copied, since its replicas have moving averages "
            f"of their own, received {error}. Save it, and predict with the path"
        ) from error
    return copy


def _loaded(path: Path, signature: str | None, tables: Sequence[str] | None) -> Predictor:
    is_saved_model = (path / "saved_model.pb").is_file()
    if not is_saved_model and not (path.is_file() and path.suffix == ".keras"):
        found = "no such path" if not path.exists() else "neither"
        raise PredictionError(
            f"model {path}: expected a folder with a saved_model.pb, or a .keras file, found "
            f"{found}"
        )
    before = fingerprints.of_files(path)
    _check_tables(path, tables)
    try:
        predictor = (
            _of_signature(path, before, signature, tables)
            if is_saved_model
            else _of_keras(keras.models.load_model(path), f"model {path}", before)
        )
    except (TfdistError, tf.errors.UnavailableError):
        raise
    except Exception as error:  # TensorFlow has an IndexError for a file that is cut off
        raise PredictionError(f"model {path}: cannot be loaded: {one_line(error)}") from error
    if fingerprints.of_files(path) != before:
        raise PredictionError(f"model {path}: its files have changed while it was loaded")
    return predictor


def _check_tables(path: Path, tables: Sequence[str] | None) -> None:
    are_served = ServedModelFile.is_in(str(path))
    if are_served and tables is None:
        raise PredictionError(
            f"model {path}: its tables are on servers: expected their addresses in tables, or a "
            "SavedModel with its rows, of tfdist.export_for_serving without tables='served'"
        )
    if tables is not None and not are_served:
        raise PredictionError(
            f"tables: expected a SavedModel of tfdist.export_for_serving(tables='served'), "
            f"received {path}, which looks nothing up at servers"
        )


def _of_signature(
    path: Path, fingerprint: str, signature: str | None, tables: Sequence[str] | None
) -> Predictor:
    if tables is None:
        loaded = tf.saved_model.load(str(path))
    else:
        loaded = load(str(path), tables, wait=_TABLES_WAIT)
        fingerprint += f" snapshot {loaded.table_connection.snapshot}"
    signatures = loaded.signatures
    name = signature or "serving_default"
    if name not in signatures:
        raise PredictionError(
            f"model {path}: expected the signature {name!r}, found {sorted(signatures)}"
        )
    function = signatures[name]
    specs = function.structured_input_signature[1]
    inputs = sorted(specs)

    def call(features: Mapping[str, Any]) -> Nested:
        # The loaded object owns the variables.
        assert loaded is not None
        for name, value in features.items():
            if value.dtype != specs[name].dtype:  # TensorFlow would fail at the first batch
                raise ValueError(
                    f"input {name!r}: expected {specs[name].dtype.name}, received "
                    f"{value.dtype.name}: cast it in map"
                )
        return function(**features)

    return Predictor(f"model {path}", f"{fingerprint} {name}", inputs, call, True)


def _of_keras(model: Any, name: str, fingerprint: str) -> Predictor:
    def call(features: Nested) -> Nested:
        return model(features, training=False)

    return Predictor(name, fingerprint, _input_names(model), call, True)


def _input_names(model: Any) -> Sequence[str] | None:
    """Returns the names of a functional model's inputs, if it takes a dict of them."""
    structure = getattr(model, "_inputs_struct", None)
    if isinstance(structure, Mapping):
        return sorted(structure)
    inputs = getattr(model, "inputs", None)
    if isinstance(inputs, list) and len(inputs) > 1:
        return [tensor.name for tensor in inputs]
    return None


def _selection(predictor: Predictor, spec: Nested, keep: Sequence[str]) -> Callable[[Any], Any]:
    """Returns the function from a batch of features to the model's inputs.

    Raises:
      PredictionError: a kept feature or an input is missing.
    """
    if not isinstance(spec, Mapping):
        if keep:
            raise PredictionError(
                f"keep={list(keep)}: expected a map that returns a dict of features, received "
                f"{spec}"
            )
        if predictor.inputs is not None and len(predictor.inputs) == 1:
            (only,) = predictor.inputs
            return lambda features: {only: features}
        return lambda features: features
    for name in keep:
        if name not in spec:
            raise PredictionError(
                f"keep={list(keep)}: expected names of features, which are {sorted(spec)}, "
                f"received {name!r}"
            )
    if predictor.inputs is None:
        if not predictor.needs_graph:
            return lambda features: features
        rest = [name for name in spec if name not in keep]
        if len(rest) == 1:
            return lambda features: features[rest[0]]
        return lambda features: {name: features[name] for name in rest}
    names = predictor.inputs
    rest = [name for name in spec if name not in keep]
    if len(names) == len(rest) == 1:
        (only,), (given,) = names, rest
        return lambda features: {only: features[given]}
    missing = sorted(set(names) - set(spec))
    if missing:
        raise PredictionError(
            f"{predictor.name}: expected features of the names {list(names)}, which its signature "
            f"has, received {sorted(spec)}; missing: {missing}"
        )
    return lambda features: {name: features[name] for name in names}


def _named(outputs: Nested) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if isinstance(outputs, list | tuple):
        return {f"{_ONLY}_{i}": value for i, value in enumerate(outputs)}
    return {_ONLY: outputs}


def _array(value: Any) -> np.ndarray:
    if isinstance(value, tf.RaggedTensor):
        return _array_of_rows(value)
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    if tf.is_tensor(value) and value.dtype == tf.bfloat16:
        value = tf.cast(value, tf.float32)  # which no format lacks
    return np.asarray(value)


def _array_of_rows(value: tf.RaggedTensor) -> np.ndarray:
    """Returns an array of rows: arrays of the tensor's type, or nested lists."""
    if value.dtype == tf.bfloat16:
        value = tf.cast(value, tf.float32)
    found = np.empty(int(value.nrows()), object)
    if value.ragged_rank > 1:
        rows = value.to_list()
    else:
        splits = value.row_splits.numpy()
        rows = np.split(value.values.numpy(), splits[1:-1])
    for i, row in enumerate(rows):  # numpy would make lists of one length a second axis
        found[i] = row
    return found
