"""The records between the launcher and the agent of a host: JSON objects, one on each line.

    launcher -> agent                                agent -> launcher
    settings  secret and environment, once           hello    version
    ports     how many                               ports    which
    start     a task's process                       started | failed
    signal, notify, resize                           output   bytes of one stream, base64
                                                     exit     as soon as it has ended
    close     kill what is left of it                closed   after its last output, with its own
                                                              note of its failure
    succeeded the job has: its dumps are not kept
    beat      every few seconds

An agent that hears nothing for `SILENCE` seconds takes the launcher for gone.
"""

from __future__ import annotations

import binascii
import json
from typing import Any

# Seconds between two beats, and without any until the agent ends its tasks.
BEAT = 10.0
SILENCE = 120.0
# Bytes of a line; a longer one is none of ours. An environment can be large.
MAX_LINE = 16 * 1024 * 1024

Record = dict[str, Any]


class RecordError(ValueError):
    """The received data is no record; the message shows it."""


class RecordStream:
    """Cuts a stream of bytes into records."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Record]:
        """Takes more bytes; returns the records that they complete.

        Raises:
          RecordError: a line is no record.
        """
        self._buffer += data
        end = self._buffer.rfind(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_LINE:
                raise RecordError(f"a line of more than {MAX_LINE} bytes")
            return []
        lines = bytes(self._buffer[:end]).split(b"\n")
        del self._buffer[: end + 1]
        return [_record(line) for line in lines]


def line(kind: str, **fields: object) -> bytes:
    """Returns a record as a line, without its end."""
    return json.dumps({"record": kind, **fields}, separators=(",", ":")).encode()


def packed(data: bytes) -> str:
    """Returns bytes as text for a field."""
    return binascii.b2a_base64(data, newline=False).decode()


def unpacked(text: str) -> bytes:
    """Returns the bytes of a field that `packed` made."""
    return binascii.a2b_base64(text)


def _record(line: bytes) -> Record:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("record"), str):
        raise RecordError(line[:200].decode("utf-8", "replace"))
    return fields
