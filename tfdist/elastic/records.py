"""The results of ended calls of `fit`, `evaluate` and `predict`, for processes that leave them out.

A record has a text and values. It is kept as *parts*, each under the digest of its bytes, so that
what a call did not change is kept once:

    record 1    head -> digests of    kernel   bias   moments
                                        |        |       |
                                      part a   part b  part c
                                        |
    record 2    head -> digests of    kernel   bias'  moments'     kernel was frozen

Every member keeps all records: any of them may be the last one. Parts are in memory up to a
limit, and then in a file without a name, which ends with the process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.config.validation import show
from tfdist.errors import TfdistError

_DIGEST_BYTES = 16
_MAX_KIND = 100  # characters
_MAX_SHOWN = 1000  # bytes


@dataclasses.dataclass(frozen=True)
class Value:
    """An array in a record.

    Attributes:
      digest: of its bytes.
      dtype: its name, as TensorFlow has it.
      shape: its shape.
    """

    digest: str
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """The results of one call.

    Attributes:
      kind: "fit", "evaluate" or "predict".
      subject: the arguments that another process must have called it with, by field.
      rest: the digest of the bytes that are neither of these.
      values: the variables that it may have changed, in a fixed order.
      failure: why there is no more of it; empty if there is.
    """

    kind: str
    subject: dict[str, str] = dataclasses.field(default_factory=dict)
    rest: str = ""
    values: tuple[Value, ...] = ()
    failure: str = ""

    def to_bytes(self) -> bytes:
        """The record as a part."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Record:
        """Reads what `to_bytes` wrote.

        Raises:
          ValueError: it is something else.
        """
        try:
            fields = json.loads(content)
            listed = fields.pop("values")
            if not isinstance(listed, list):
                raise _no_record(content)
            values = tuple(Value(**(value | _shape(value))) for value in listed)
            record = cls(**fields, values=values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _no_record(content) from error
        if not _is_whole(record):
            raise _no_record(content)
        return record

    @property
    def parts(self) -> list[str]:
        """The digests of all parts of it, each once."""
        return list(dict.fromkeys([self.rest, *(value.digest for value in self.values)]))


class RecordGoneError(TfdistError):
    """The results of a call are not kept any more, so a process cannot leave the call out."""


class CallRecords:
    """The records of all calls that this process has ended, or left out.

    Any thread may read; one at a time adds.

    Args:
      limit: the bytes that are kept in memory; what comes then is kept in a file.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._heads: list[str] = []
        self._parts: dict[str, _Part] = {}
        self._in_memory = 0
        self._file: Any = None
        self._file_size = 0

    def __len__(self) -> int:
        return len(self._heads)

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of all parts that are in memory."""
        return self._in_memory

    @property
    def bytes_in_file(self) -> int:
        """The bytes of all parts that are in the file."""
        return self._file_size

    def keep(self, content: memoryview | bytes) -> str:
        """Keeps a part, unless it is kept already; returns its digest.

        Args:
          content: its bytes, which are copied.

        Raises:
          OSError: the file cannot be written.
        """
        digest = digest_of(content)
        with self._lock:
            if digest not in self._parts:
                self._parts[digest] = self._kept(content)
        return digest

    def add(self, record: Record) -> None:
        """Adds the record of the next call, all of whose parts are kept.

        If the file cannot be written, the record says so: the call itself has succeeded.
        """
        try:
            head = self.keep(record.to_bytes())
        except OSError as error:
            failure = record.failure or f"its results could not be kept: {error}"
            head = self._keep_in_memory(failed(record.kind, failure).to_bytes())
        with self._lock:
            self._heads.append(head)

    def head(self, call: int) -> str | None:
        """Returns the digest of the record of call number `call`, from 1; None if there is none."""
        with self._lock:
            return self._heads[call - 1] if 0 < call <= len(self._heads) else None

    def size(self, digest: str) -> int | None:
        """Returns the bytes of a part; None if it is not kept."""
        with self._lock:
            part = self._parts.get(digest)
        return None if part is None else part.size

    def read(self, digest: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns bytes of a part.

        Args:
          digest: of a part that is kept.
          offset: the first byte.
          size: how many at most; None means all that follow.

        Raises:
          OSError: the file cannot be read.
        """
        with self._lock:
            part = self._parts[digest]
        begin = min(offset, part.size)
        return part.read(begin, part.size if size is None else min(part.size, begin + size))

    def _keep_in_memory(self, content: bytes) -> str:
        """Keeps a part beyond the limit, which is small."""
        digest = digest_of(content)
        with self._lock:
            if digest not in self._parts:
                self._parts[digest] = self._held(content)
        return digest

    def _held(self, content: memoryview | bytes) -> _Part:
        held = bytes(content)
        self._in_memory += len(held)
        return _Part(len(held), lambda begin, end: held[begin:end])

    def _kept(self, content: memoryview | bytes) -> _Part:
        size = memoryview(content).nbytes
        if self._in_memory + size <= self._limit:
            return self._held(content)
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tfdist-records-", buffering=0)
            weakref.finalize(self, self._file.close)
        file, at = self._file, self._file_size
        _write_at(file.fileno(), content, at)
        self._file_size += size
        return _Part(size, lambda begin, end: os.pread(file.fileno(), end - begin, at + begin))


@dataclasses.dataclass(frozen=True)
class _Part:
    size: int
    read: Callable[[int, int], bytes]


def _shape(value: dict[str, Any]) -> dict[str, object]:
    sizes = value["shape"]
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError(f"expected a shape, received {show(sizes)}")
    return {"shape": tuple(sizes)}


def _is_whole(record: Record) -> bool:
    """Whether a record that was received has fields of the right kinds."""
    subject = record.subject
    return (
        all(isinstance(text, str) for text in (record.kind, record.rest, record.failure))
        and record.kind.isprintable()
        and len(record.kind) <= _MAX_KIND
        and isinstance(subject, dict)
        and all(isinstance(text, str) for text in subject.values())
        and all(isinstance(v.digest, str) and isinstance(v.dtype, str) for v in record.values)
        and all(value.digest for value in record.values)
        and bool(record.rest or record.failure)
    )


def _no_record(content: bytes) -> ValueError:
    return ValueError(f"expected a record of a call, received {show(content[:_MAX_SHOWN])}")


def digest_of(content: memoryview | bytes) -> str:
    """Returns the name of some bytes among parts."""
    # Processors have instructions for it, which is faster than BLAKE2.
    return hashlib.sha256(content).hexdigest()[: 2 * _DIGEST_BYTES]


def failed(kind: str, failure: str) -> Record:
    """Returns the record of a call that has raised an error, or that cannot be kept."""
    return Record(kind, failure=failure)


def differences(own: dict[str, str], theirs: dict[str, str]) -> Sequence[str]:
    """Returns what differs between two subjects, in words."""
    return [
        f"{field!r}: expected {show(theirs.get(field))}, received {show(value)}"
        for field, value in own.items()
        if theirs.get(field) != value
    ]


def _write_at(file: int, content: memoryview | bytes, at: int) -> None:
    rest = memoryview(content).cast("B")
    while rest:
        written = os.pwrite(file, rest, at)
        at, rest = at + written, rest[written:]
