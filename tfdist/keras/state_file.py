"""Checkpoint files that Keras writes, completed by the training's state, and replaced at once.

The state is within the file of the weights, so that a process killed at any time leaves the former
file or the new one, and never weights with another position than theirs. Keras reads such files as
its own. They have a few members (a `.keras` archive) or datasets (HDF5) more:

| Name | Holds |
|---|---|
| `tfdist_training_state` | the position in the data, and what each replica has of its own |
| `tfdist_term` | in which generation of which elastic job it was written |
| `tfdist_checksum` | HDF5 alone: the CRC-32 of the file, in which these bytes are zeros |

An archive has a checksum of each member already.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import h5py
import numpy as np
import tensorflow as tf

from tfdist import atomic_files
from tfdist._types import FilePath, KerasModel
from tfdist.atomic_files import Term
from tfdist.data.position import InputPosition
from tfdist.keras import exchange
from tfdist.keras.models import model_variables, optimizer_variables
from tfdist.keras.own_state import OwnState
from tfdist.keras.session.positions import positions_of
from tfdist.keras.training_state import TrainingState
from tfdist.keras.workers import rank_of, term_of
from tfdist.ops.trace import events

_MEMBER = "tfdist_training_state"
_TERM = "tfdist_term"
_CHECKSUM = "tfdist_checksum"
_CHECKSUM_BYTES = 8  # of hexadecimal digits
_CHUNK = 1 << 20  # bytes
_STRUCTURE = 4096  # bytes around each array of HDF5, at most
_ERRNO = re.compile(r"errno = (\d+)")  # in errors of HDF5
# How such files begin.
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ARCHIVE = b"PK\3\4"
# Errors of TensorFlow's files that come of the content; others come of the file system.
_OF_WRONG_OFFSETS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)


class CompletingSaver:
    """Stands for a model in a callback: its files hold the training's state too.

    Args:
      model: the model, which answers everything but its saving.
      state: the training's state.
      former: where a file that is replaced is kept.
    """

    def __init__(
        self, model: KerasModel, state: TrainingState, former: FilePath | None = None
    ) -> None:
        self._model = model
        self._state = state
        self._former = None if former is None else os.fspath(former)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: FilePath, overwrite: bool = True, **options: object) -> None:
        """As `keras.Model.save`."""
        self._replace(filepath, lambda path: self._model.save(path, **options))

    def save_weights(self, filepath: FilePath, overwrite: bool = True, **options: object) -> None:
        """As `keras.Model.save_weights`."""
        self._replace(filepath, lambda path: self._model.save_weights(path, **options))

    def _replace(self, filepath: FilePath, save: Callable[[str], None]) -> None:
        path = os.fspath(filepath)
        term = term_of(self._model)

        def write(new: str) -> None:
            with _errors_of_the_file_system():
                save(new)
                _add(new, self._state, term)

        with events.span("checkpoint", path):
            if "://" in path:
                _replace_remote(path, self._former, write)
            else:
                atomic_files.replace(
                    path,
                    write,
                    needs=_size_of(self._model, self._state),
                    former=self._former,
                    term=term,
                    term_of=_read_term,
                )


def _size_of(model: KerasModel, state: TrainingState) -> int:
    """About the bytes of a model's file.

    HDF5 ends the process by SIGSEGV where a disk becomes full, so this is compared before.
    """
    variables = [*model_variables(model), *optimizer_variables(model)]
    sizes = [math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables]
    own = sum(value.nbytes for value in state.own.values.values())
    return sum(sizes) + own + _STRUCTURE * (1 + len(sizes))


@contextlib.contextmanager
def _errors_of_the_file_system() -> Iterator[None]:
    """Turns an error of HDF5 into an OSError, if it is one of the operating system."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        found = _ERRNO.search(str(error))
        if found is None or getattr(error, "errno", None):
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from error


def _replace_remote(path: str, former: str | None, write: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        # Its name ends as the other's, by which Keras knows the format.
        new = os.path.join(scratch, os.path.basename(path))
        write(new)
        if former is not None and tf.io.gfile.exists(path):
            tf.io.gfile.rename(path, former, overwrite=True)
        tf.io.gfile.copy(new, path, overwrite=True)


def is_of_later_term(path: FilePath, model: KerasModel) -> bool:
    """Whether a local file was written after the members of an elastic job had left this process.

    Args:
      path: the file, which need not exist.
      model: which the members train.
    """
    term = term_of(model)
    return term is not None and term.is_before(_read_term(os.fspath(path)))


def read_state(path: FilePath) -> bytes | None:
    """Returns the state in a checkpoint file, for `unpacked`; `None` if there is none.

    The whole file is read, and its checksums are compared. HDF5 files of other programs have none.

    Raises:
      ValueError: the file is damaged; names it.
      tf.errors.OpError: it cannot be read; NotFoundError: there is no such file.
    """
    try:
        with tf.io.gfile.GFile(os.fspath(path), "rb") as file:
            begins = file.read(len(_HDF5))
            file.seek(0)
            if begins == _HDF5:
                return _read_hdf5(file)
            # `zipfile` looks at the end alone, and finds the state's own archive in an HDF5 file.
            if not begins.startswith(_ARCHIVE):
                received = f"bytes that begin with {begins!r}" if begins else "an empty file"
                raise ValueError(f"expected an HDF5 file or a .keras archive, received {received}")
            with zipfile.ZipFile(file) as archive:
                altered = archive.testzip()
                if altered is not None:
                    raise ValueError(f"the checksum of {altered!r} in it differs")
                return archive.read(_MEMBER) if _MEMBER in archive.namelist() else None
    except Exception as error:  # zipfile and h5py raise many types for wrong bytes
        if isinstance(error, tf.errors.OpError) and not isinstance(error, _OF_WRONG_OFFSETS):
            raise
        raise ValueError(f"{os.fspath(path)} is damaged: {error}") from error


def go_on_from_file(model: KerasModel, path: FilePath) -> None:
    """Lets the running `fit` of a model continue from a checkpoint file, which the chief reads.

    Raises:
      ValueError: the file has no state, or the model is not in `fit` of Keras 3, or no strategy of
        tfdist has been made before `fit`.
      tf.errors.OpError: it cannot be read; NotFoundError: there is no such file.
    """
    positions = positions_of(model)
    if positions is None:
        raise ValueError(
            f"ResumeFrom({os.fspath(path)!r}): expected a fit of Keras 3 that began after a "
            f"strategy of tfdist was made, received one of {type(model).__module__}"
        )
    content = exchange.broadcast(model, read_state(path) if rank_of(model) == 0 else None)
    if content is None:
        raise ValueError(
            f"ResumeFrom({os.fspath(path)!r}): expected a file that ModelCheckpoint or "
            "BackupAndRestore wrote in fit, after a strategy of tfdist was made, received one "
            "without a position in the data"
        )
    positions.go_on_from(unpacked(content))


def _read_hdf5(file: BinaryIO) -> bytes | None:
    """Returns the state in an HDF5 file, if all of the file is as it was written."""
    with h5py.File(file, "r") as weights:
        state = weights[_MEMBER][()].tobytes() if _MEMBER in weights else None
        if _CHECKSUM not in weights:
            if _TERM in weights:
                raise ValueError("expected a checksum in it, received none")
            # Reading finds what is missing; nothing finds what is altered.
            weights.visititems(_read_values)
            return state
        offset = _offset_of_checksum(weights)
        expected = weights[_CHECKSUM][()].tobytes()
    received = _checksum(file, offset)
    if received != expected:
        raise ValueError(f"expected the checksum {expected!r}, received {received!r}")
    return state


def _read_values(name: str, value: h5py.Group | h5py.Dataset) -> None:
    if isinstance(value, h5py.Dataset):
        value[()]


def _offset_of_checksum(weights: h5py.File) -> int:
    """The offset of the checksum in an HDF5 file, in bytes."""
    stored = weights[_CHECKSUM]
    offset = stored.id.get_offset()
    if offset is None or stored.shape != (_CHECKSUM_BYTES,) or stored.dtype != np.uint8:
        raise ValueError(
            f"expected a checksum of {_CHECKSUM_BYTES} bytes, received {stored.dtype.name}"
            f"{list(stored.shape or [])}"
        )
    return offset


def _checksum(file: BinaryIO, offset: int) -> bytes:
    """The checksum of a file, in which the bytes from `offset` on count as zeros.

    Args:
      file: the file.
      offset: the offset of the checksum in it.
    """
    file.seek(0)
    value, at = 0, 0
    while chunk := file.read(_CHUNK):
        first = max(offset - at, 0)
        last = min(offset + _CHECKSUM_BYTES - at, len(chunk))
        if first < last:
            chunk = chunk[:first] + bytes(last - first) + chunk[last:]
        value = zlib.crc32(chunk, value)
        at += len(chunk)
    return f"{value:08x}".encode()


def _add(path: str, state: TrainingState, term: Term | None = None) -> None:
    """Completes an existing file of Keras."""
    content = _packed(state)
    written_in = json.dumps(None if term is None else [term.job, term.number]).encode()
    # None of this makes a file, where another process has removed the one of Keras.
    with open(path, "rb+") as file:
        if file.read(len(_HDF5)) != _HDF5:
            with zipfile.ZipFile(file, "a") as archive:
                archive.writestr(_MEMBER, content)
                archive.writestr(_TERM, written_in)
            return
    with h5py.File(path, "r+") as weights:
        weights[_MEMBER] = np.frombuffer(content, np.uint8)
        weights[_TERM] = np.frombuffer(written_in, np.uint8)
        weights[_CHECKSUM] = np.zeros([_CHECKSUM_BYTES], np.uint8)
        offset = _offset_of_checksum(weights)
    with open(path, "rb+") as file:
        checksum = _checksum(file, offset)
        file.seek(offset)
        file.write(checksum)


def _read_term(path: str) -> Term | None:
    """The term in which a file was written; `None` if it has none, or cannot be read."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_HDF5)) == _HDF5:
                with h5py.File(file, "r") as weights:
                    content = weights[_TERM][()].tobytes()
            else:
                with zipfile.ZipFile(file) as archive:
                    content = archive.read(_TERM)
        job, number = json.loads(content)
        return Term(str(job), int(number))
    except Exception:  # as in `read_state`
        return None


def _packed(state: TrainingState) -> bytes:
    names = list(state.own.values)
    arrays: dict[str, Any] = {f"value_{i}": state.own.values[name] for i, name in enumerate(names)}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        position=np.array(state.position.to_json()),
        names=np.array(json.dumps(names)),
        **arrays,
    )
    return buffer.getvalue()


def unpacked(content: bytes) -> TrainingState:
    """Returns the state that `read_state` has read.

    Raises:
      ValueError: it is damaged, or not tfdist's.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            names = json.loads(str(found["names"]))
            own = OwnState({name: found[f"value_{i}"] for i, name in enumerate(names)})
            return TrainingState(InputPosition.from_json(str(found["position"])), own)
    except Exception as error:  # zipfile and NumPy raise many types for wrong bytes
        raise ValueError(f"the state of a training is damaged: {error}") from error
