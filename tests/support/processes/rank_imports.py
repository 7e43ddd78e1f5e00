"""The imports of the multi-process tests' fork server, once for all ranks; see ranks.py.

Nothing here starts a thread, which a fork would lose.
"""

import importlib
import pkgutil

import keras  # noqa: F401
import numpy  # noqa: F401
import pytest  # noqa: F401
import tensorflow  # noqa: F401

import tfdist.strategies
from support.processes import rank_process  # noqa: F401
from tfdist.ops import library

library.c_api()

# The packages that most ranks import when they train, which takes each of them 0.1 s; without
# tf_keras, without KerasTuner, and without the layers that are registered with Keras: tests check
# that these are found where a program needs them.
for _package in ("config", "data", "elastic", "job", "keras", "ps"):
    _path = [f"{folder}/{_package}" for folder in tfdist.__path__]
    for _module in pkgutil.walk_packages(_path, f"tfdist.{_package}."):
        if "tf_keras" not in _module.name and "tuners" not in _module.name:
            importlib.import_module(_module.name)
