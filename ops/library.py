"""Finds and loads the compiled op library that fits the running TensorFlow."""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from tfdist.errors import OpLibraryError

# Resolved, because TensorFlow accepts the same file twice but not a second path to it.
_DIRECTORY = Path(__file__).resolve().parent
_REBUILD = (
    "Rebuild it against the installed TensorFlow: `pip install --no-build-isolation "
    "--force-reinstall --no-deps .` in tfdist's sources, or `make -C ops lib` when you run from a "
    "checkout."
)


_ERROR_BYTES = 2048
_ERROR = (ctypes.c_char_p, ctypes.c_size_t)


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def library_path(directory: Path = _DIRECTORY, version: str = tf.__version__) -> Path:
    """Returns the library in `directory` that was built for TensorFlow `version`.

    Raises:
      OpLibraryError: no library is there, or only one that was built for another TensorFlow.
    """
    path = directory / f"libtfdist_ops.tf{_series(version)}.so"
    if path.exists():
        return path
    others = sorted(
        p.name.removeprefix("libtfdist_ops.tf").removesuffix(".so")
        for p in directory.glob("libtfdist_ops.tf*.so")
    )
    if others:
        raise OpLibraryError(
            f"tfdist's op library was built for TensorFlow {', '.join(others)}, but TensorFlow "
            f"{version} is running. {_REBUILD}"
        )
    raise OpLibraryError(f"tfdist's op library is missing: expected {path}. {_REBUILD}")


def _load(loader, path: Path):
    try:
        return loader(str(path))
    except (OSError, tf.errors.NotFoundError) as error:
        raise OpLibraryError(
            f"tfdist's op library {path.name} does not load into TensorFlow {tf.__version__}: "
            f"{error}. {_REBUILD}"
        ) from error


@functools.cache
def graph_ops() -> ModuleType:
    """The generated Python functions of the library's ops."""
    return _load(tf.load_op_library, library_path())


@functools.cache
def c_api() -> ctypes.CDLL:
    """The library's C functions (core/**/c_api.cc); `CFunctions` declares them."""
    graph_ops()  # brings in TensorFlow's own libraries, which ours needs
    return _load(ctypes.CDLL, library_path())


class CFunctions:
    """C functions of one prefix, of which those that can fail raise what went wrong.

    Args:
      prefix: such as "tfdist_communicator_".
      checked: by name without the prefix, the argument types of functions that return a status code
        and take, at the end, a buffer for the message and its size.
      plain: by name, the argument types of functions that return nothing.
      returning: by name, the argument types and the type of what a function returns.
    """

    def __init__(
        self,
        prefix: str,
        checked: Mapping[str, Sequence] | None = None,
        plain: Mapping[str, Sequence] | None = None,
        returning: Mapping[str, tuple[Sequence, type]] | None = None,
    ) -> None:
        self._prefix = prefix
        status = {n: ([*types, *_ERROR], ctypes.c_int) for n, types in (checked or {}).items()}
        nothing = {n: (types, None) for n, types in (plain or {}).items()}
        self._checked = set(status)
        self._types = {**status, **nothing, **(returning or {})}

    def __getattr__(self, name: str):
        if name not in self._types:
            raise AttributeError(f"there is no C function {self._prefix}{name}")
        function = getattr(c_api(), self._prefix + name)
        function.argtypes, function.restype = self._types[name]
        if name in self._checked:
            function = functools.partial(_check, function)
        setattr(self, name, function)  # found without this method from now on
        return function


def _check(function, *arguments) -> None:
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    code = function(*arguments, error, _ERROR_BYTES)
    if code != 0:
        raise tf.compat.v1.errors.exception_type_from_error_code(code)(
            None, None, error.value.decode(errors="replace")
        )
