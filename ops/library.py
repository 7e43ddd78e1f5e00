"""Finds and loads the compiled op library that fits the running TensorFlow.

The library has two interfaces: TensorFlow ops (`graph_ops`), and C functions that Python calls
through ctypes (`c_api`). Structures that C functions take are declared twice, in C++ and as
`ctypes.Structure`. `c_structure` registers the Python half; loading compares the sizes.
"""

import ctypes
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.errors import OpLibraryError

Handle = ctypes.c_int64  # of a C++ object

# Resolved, because TensorFlow accepts the same file twice but not a second path to it.
_DIRECTORY = Path(__file__).resolve().parent
_REBUILD = (
    "Install it again, with the wheel (`pip install --force-reinstall --no-deps ./tfdist-*.whl`) "
    "or from tfdist's sources (`pip install --no-build-isolation --force-reinstall --no-deps .`); "
    "in a checkout, run `make -C ops lib`."
)
# Of an ELF file of 64 bits: the place and number of its segments' headers; a segment's type, offset
# and size in the file.
_ELF_HEADER = struct.Struct("<4s28xQ16xH6x")
_ELF_SEGMENT = struct.Struct("<I4xQ16xQ16x")
_MAPPED = 1  # PT_LOAD
_ERROR_BYTES = 2048
_ERROR = (ctypes.c_char_p, ctypes.c_size_t)

Structure = TypeVar("Structure", bound=type[ctypes.Structure])
_structures: dict[str, type[ctypes.Structure]] = {}


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def library_path(directory: Path = _DIRECTORY, version: str = tf.__version__) -> Path:
    """Returns the path of the library in `directory` that was built for TensorFlow `version`.

    Raises:
      OpLibraryError: there is no library, or only libraries for other TensorFlow versions.
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


_Library = TypeVar("_Library")


def _load(loader: Callable[[str], _Library], path: Path) -> _Library:
    try:
        _check_length(path)
        return loader(str(path))
    except (OSError, tf.errors.NotFoundError) as error:
        raise OpLibraryError(
            f"tfdist's op library {path.name} does not load into TensorFlow {tf.__version__}: "
            f"{error}. {_REBUILD}"
        ) from error


def _check_length(path: Path) -> None:
    """Checks that a library is whole: the loader maps a cut one, and SIGBUS ends the process.

    Raises:
      OpLibraryError: a part that would be mapped is not in the file.
    """
    length = path.stat().st_size
    try:
        with path.open("rb") as file:
            name, offset, number = _ELF_HEADER.unpack(file.read(_ELF_HEADER.size))
            file.seek(offset)
            segments = list(_ELF_SEGMENT.iter_unpack(file.read(number * _ELF_SEGMENT.size)))
    except struct.error:
        return  # the loader says that it is too short
    expected = max((at + size for kind, at, size in segments if kind == _MAPPED), default=0)
    if name == b"\x7fELF" and length < expected:
        raise OpLibraryError(
            f"tfdist's op library {path.name} is damaged: expected {expected} bytes or more, "
            f"received {length}. {_REBUILD}"
        )


@functools.cache
def graph_ops() -> ModuleType:
    """Returns the generated Python functions of the library's ops."""
    return _load(tf.load_op_library, library_path())


def c_structure(name: str) -> Callable[[Structure], Structure]:
    """Registers a ctypes structure whose size the library exports as `tfdist_sizeof_<name>`.

    Apply it at import time: sizes are compared once, when the library is loaded. Importing
    `tfdist.ops` imports all structures before anything can load the library.
    """

    def register(structure: Structure) -> Structure:
        _structures[name] = structure
        return structure

    return register


def check_structures(
    library: ctypes.CDLL, structures: Mapping[str, type[ctypes.Structure]], name: str
) -> None:
    """Compares the sizes of ctypes structures with the sizes of the library's C++ structures.

    Args:
      library: the loaded library.
      structures: Python's structures by the names that they were registered with.
      name: the library's file name, for the message.

    Raises:
      OpLibraryError: sizes differ, or the library does not export one; names all of them.
    """
    differences = []
    for structure, kind in structures.items():
        size_in_library = getattr(library, f"tfdist_sizeof_{structure}", None)
        if size_in_library is None:
            differences.append(f"{structure} (expected {ctypes.sizeof(kind)} bytes, received none)")
            continue
        size_in_library.restype = ctypes.c_size_t
        if (size := size_in_library()) != ctypes.sizeof(kind):
            differences.append(
                f"{structure} (expected {ctypes.sizeof(kind)} bytes, received {size})"
            )
    if differences:
        raise OpLibraryError(
            f"tfdist's op library {name} does not fit tfdist's Python code: these structures "
            f"differ: {', '.join(differences)}. {_REBUILD}"
        )


@functools.cache
def c_api() -> ctypes.CDLL:
    """Returns the library's C functions (core/**/*c_api.cc); `CFunctions` declares them.

    Raises:
      OpLibraryError: the library does not load, or has other structures than Python.
    """
    graph_ops()  # loads TensorFlow's own libraries, which ours needs
    path = library_path()
    library = _load(ctypes.CDLL, path)
    check_structures(library, _structures, path.name)
    return library


class CFunctions:
    """C functions with a common prefix. A function that can fail raises a TensorFlow error.

    Args:
      prefix: such as "tfdist_communicator_".
      checked: functions that return a status code and take a message buffer and its size as their
        last two arguments: the types of the other arguments, by name without the prefix.
      plain: functions that return nothing: argument types by name.
      returning: functions that return a value: argument types and result type by name.
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

    def __getattr__(self, name: str) -> Any:
        if name not in self._types:
            raise AttributeError(f"there is no C function {self._prefix}{name}")
        function = getattr(c_api(), self._prefix + name)
        function.argtypes, function.restype = self._types[name]
        if name in self._checked:
            function = functools.partial(_check, function)
        setattr(self, name, function)  # later calls do not come through __getattr__
        return function


def _check(function: Callable[..., int], *arguments: object) -> None:
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    code = function(*arguments, error, _ERROR_BYTES)
    if code != 0:
        raise tf.compat.v1.errors.exception_type_from_error_code(code)(
            None, None, error.value.decode(errors="replace")
        )
