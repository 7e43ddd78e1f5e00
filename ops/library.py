"""Finds and loads the compiled op library that fits the running TensorFlow."""

import ctypes
import functools
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


class Stats(ctypes.Structure):
    """Counters of a communicator, laid out as `CommunicatorStats` in core/communicator.h."""

    _fields_ = [
        ("collectives", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("busy_nanoseconds", ctypes.c_uint64),
        ("rejected_connections", ctypes.c_uint64),
    ]


@functools.cache
def c_api() -> ctypes.CDLL:
    """The library's C functions (core/c_api.cc), with their argument types declared."""
    graph_ops()  # brings in TensorFlow's own libraries, which ours needs
    library = _load(ctypes.CDLL, library_path())
    error = [ctypes.c_char_p, ctypes.c_size_t]
    handle = ctypes.c_int64
    signatures = {
        "create": [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(handle),
            ctypes.POINTER(ctypes.c_int),
            *error,
        ],
        "connect": [
            handle,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int,
            ctypes.c_double,
            *error,
        ],
        "status": [handle, *error],
        "abort": [handle, ctypes.c_char_p],
        "leave": [handle],
        "close": [handle],
        "stats": [handle, ctypes.POINTER(Stats)],
    }
    for name, argument_types in signatures.items():
        function = getattr(library, f"tfdist_communicator_{name}")
        function.argtypes = argument_types
        function.restype = ctypes.c_int if name in ("create", "connect", "status") else None
    return library
