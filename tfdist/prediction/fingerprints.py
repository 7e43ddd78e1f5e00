"""The identity of models and functions: a restarted job must not mix the rows of two."""

from __future__ import annotations

import hashlib
import json
import os
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.files import size_of

_BLOCK = 1 << 20
_SAMPLED_FILES, _SAMPLE = 32, 64 << 10  # and bytes of each end


def of_files(path: Path) -> str:
    """Returns the fingerprint of a file, or of all files in a folder."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        digest.update(f"{os.path.relpath(file, path)}\0{file.stat().st_size}\0".encode())
        with open(file, "rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def of_input(paths: Sequence[str]) -> str:
    """Returns the fingerprint of input files: both ends of some of them; "" without files.

    Names and sizes of files do not tell yesterday's records of fixed size from today's.

    Raises:
      FileNotFoundError: a file has vanished.
    """
    if not paths:
        return ""
    digest = hashlib.sha256()
    step = -(-len(paths) // _SAMPLED_FILES)
    for path in [*paths[:-1:step], paths[-1]]:
        size = size_of(path)
        with tf.io.gfile.GFile(path, "rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def of_keras(model: Any) -> str:
    """Returns the fingerprint of a Keras model: its configuration, and the values of its weights.

    Rows of tables on parameter servers do not count.
    """
    digest = hashlib.sha256(type(model).__name__.encode())
    try:
        config = model.get_config()
        digest.update(json.dumps(config, sort_keys=True, default=_text_of).encode())
    except Exception:  # a model class without a configuration: its weights tell
        pass
    for value in model.get_weights():
        array = np.asarray(value)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def of_function(function: Callable[..., Any] | None) -> str:
    """Returns the fingerprint of a function: its name and code, not the values that it uses."""
    if function is None:
        return ""
    code = _code_of(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    text = name if code is None else f"{name} {_text(code)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _text_of(value: Any) -> str:
    """Returns a text of an object that is the same in each process: without its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _code_of(function: Any) -> types.CodeType | None:
    for name in ("python_function", "__wrapped__", "func"):  # tf.function, wraps, partial
        function = getattr(function, name, function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__", function)
    return getattr(function, "__code__", None)


def _text(code: types.CodeType) -> str:
    """Returns code as a text that is the same in each process of a Python release."""
    constants = [
        _text(value)
        if isinstance(value, types.CodeType)
        else repr(sorted(value, key=repr) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {constants}"
