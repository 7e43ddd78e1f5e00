"""Bodies of HTTP in chunks (RFC 9112, section 7.1), whose length is not known before.

5;extension CRLF      the size of a chunk in hexadecimal, with an extension that is ignored
{"ins CRLF
0 CRLF                the last chunk
name: value CRLF      trailers, which are ignored
CRLF
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import BinaryIO

# Bytes of a line with a size or a trailer, and lines of trailers.
_LINE, _TRAILERS = 1024, 32
# Each chunk costs time, however small it is. So many are free; all have more bytes on average.
_FREE, _SMALLEST = 4096, 512
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")


class ChunkError(ValueError):
    """A body is not in chunks, or in too many."""


class BodyTooLarge(ValueError):
    """A body has more bytes than the maximum."""


def read_chunks(file: BinaryIO, max_bytes: int, on_chunk: Callable[[int], None]) -> bytes:
    """Returns the body of a request.

    Args:
      file: the rest of the request.
      max_bytes: of the body.
      on_chunk: is told the size of each chunk before it is read.

    Raises:
      ChunkError: the body has another form.
      BodyTooLarge: it has more than `max_bytes` bytes; the rest is not read.
      EOFError: the request ends before.
    """
    body = bytearray()
    count = 0
    while size := _size(_line(file)):
        count += 1
        if len(body) + size > max_bytes:
            raise BodyTooLarge
        if count > _FREE + (len(body) + size) // _SMALLEST:
            raise ChunkError(
                f"expected chunks of {_SMALLEST} bytes on average, received {count} of "
                f"{len(body) + size} bytes in all"
            )
        on_chunk(size)
        body += _exactly(file, size)
        if (end := _exactly(file, 2)) != b"\r\n":
            raise ChunkError(f"expected the end of a line after a chunk, received {end!r}")
    for _ in range(_TRAILERS):
        if _line(file) == b"\r\n":
            return bytes(body)
    raise ChunkError(f"expected at most {_TRAILERS} lines after the last chunk, received more")


def _size(line: bytes) -> int:
    found = _SIZE.fullmatch(line)
    if found is None:
        raise ChunkError(f"expected the size of a chunk in hexadecimal, received {line[:40]!r}")
    return int(found[1], 16)


def _line(file: BinaryIO) -> bytes:
    line = file.readline(_LINE)
    if line.endswith(b"\r\n"):
        return line
    if len(line) < _LINE and not line.endswith(b"\n"):
        raise EOFError
    raise ChunkError(f"expected a line of at most {_LINE} bytes, received {line[:40]!r}")


def _exactly(file: BinaryIO, size: int) -> bytes:
    read = file.read(size)
    if len(read) < size:
        raise EOFError
    return read
