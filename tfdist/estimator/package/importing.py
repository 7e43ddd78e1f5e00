"""Makes the published `tensorflow-estimator` importable with a current TensorFlow.

The package, of TensorFlow 2.15, is used unchanged. Modules that it imports and that TensorFlow no
longer has are supplied here, before its first import: `coordinator` for the module that ran it on
several tasks, and stand-ins for modules that only TPUs need. It was written for Keras 2, so its
modules see tf_keras as `tf.keras`, regardless of the Keras that the process uses.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist._extras import install_command_here
from tfdist.internals.tensorflow import distribute, tf_export, tpu

_PACKAGE = "tensorflow_estimator"
_TPU_MODULES = ("session_support", "tpu_embedding", "tpu_embedding_gradient")


@functools.cache
def prepare() -> None:
    """Makes `import tensorflow_estimator` work.

    Raises:
      ImportError: it or tf_keras is not installed; says how to install it.
    """
    missing = [n for n in (_PACKAGE, "tf_keras") if importlib.util.find_spec(n) is None]
    if missing:
        raise ImportError(
            f"tfdist.estimator needs {' and '.join(missing)}: {install_command_here('estimator')}"
        )
    _supply(distribute, "estimator_training", _module("package.coordinator"))
    for name in _TPU_MODULES:
        if importlib.util.find_spec(f"{tpu.__name__}.{name}") is None:
            _supply(tpu, name, _Absent(f"{tpu.__name__}.{name}"))
    _supply_api_names()
    sys.meta_path.insert(0, _Finder())


def adapt() -> None:
    """Imports the package and makes it accept objects of either Keras."""
    _module("keras3.optimizers").convert_optimizers()
    _module("keras3.models").convert_models()
    _module("keras3.models").convert_cells()
    _module("package.repairs").repair()
    if not _uses_tf_keras():
        _module("keras3.in_graphs").adapt()


def restore_names() -> None:
    """Restores the names in TensorFlow that scripts for TensorFlow 2.15 use.

    These are `tf.estimator` and `tf.compat.v1.estimator`. With Keras 3 also names that it lacks:
    `tf.compat.v1.layers` and `tf.compat.v1.nn.rnn_cell`; and in `tf.keras`, from tf_keras, legacy
    optimizers, the layers for feature columns, and `estimator`.
    """
    api = f"{_PACKAGE}.python.estimator.api"
    tf.estimator = tf.compat.v2.estimator = importlib.import_module(f"{api}._v2.estimator")
    tf.compat.v1.estimator = importlib.import_module(f"{api}._v1.estimator")
    if _uses_tf_keras():
        return
    keras_3: Any
    legacy, keras, keras_3 = (
        _keras(1).__internal__.legacy,
        _keras(2),
        sys.modules[tf.keras.__name__],
    )
    tf.compat.v1.layers = legacy.layers
    tf.compat.v1.nn.rnn_cell = legacy.rnn_cell
    keras_3.experimental, keras_3.estimator = keras.experimental, keras.estimator
    keras_3.layers.DenseFeatures = keras.layers.DenseFeatures
    keras_3.optimizers.legacy = keras.optimizers.legacy


def _uses_tf_keras() -> bool:
    return tf.keras.__name__ == _keras(2).__name__


def _module(name: str) -> types.ModuleType:
    """Imports a module of `tfdist.estimator`; it may need packages that are not installed."""
    return importlib.import_module(f"tfdist.estimator.{name}")


def _supply(parent: types.ModuleType, name: str, module: types.ModuleType) -> None:
    sys.modules[f"{parent.__name__}.{name}"] = module
    setattr(parent, name, module)


def _supply_api_names() -> None:
    """Registers the name under which the package marks its exports, as TensorFlow does."""
    name = "estimator"
    tf_export.ESTIMATOR_API_NAME = name
    for attributes, version in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
        kind = type(attributes[tf_export.TENSORFLOW_API_NAME])
        attributes[name] = kind(
            f"_estimator_api_names{version}", f"_estimator_api_constants{version}"
        )


class _Absent(types.ModuleType):
    """A module that TensorFlow no longer has; its classes are used with TPUs only."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Face(types.ModuleType):
    """A module with some attributes replaced."""

    def __init__(self, module: types.ModuleType, **attributes: object) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(attributes, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _keras(version: int) -> types.ModuleType:
    return importlib.import_module(f"tf_keras.api._v{version}.keras")


@functools.cache
def _tensorflow_with_tf_keras() -> _Face:
    keras = _keras(2)
    aliases = {n: getattr(keras, n) for n in ("initializers", "losses", "metrics", "optimizers")}
    v1 = _Face(tf.compat.v1, keras=_keras(1), layers=_keras(1).__internal__.legacy.layers)
    v2 = _Face(tf.compat.v2, keras=keras, **aliases)
    compat = _Face(tf.compat, v1=v1, v2=v2)
    return _Face(tf, keras=keras, compat=compat, **aliases)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> types.ModuleType:
    module = builtins.__import__(name, globals, locals, fromlist, level)
    return _tensorflow_with_tf_keras() if module is tf else module


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the package's modules as usual, and makes them use `_import`."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != _PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)
