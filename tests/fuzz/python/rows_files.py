"""Files of rows: `tfdist/ps/checkpoint/rows_file.py` and `row_chain.py`.

Input: a byte for the form, then a file; or the pieces of one, which get right checksums. A file is
read, or is refused with a CheckpointError that names it; its rows have as many numbers as its
tables.
"""

import io
import json
import struct
import zlib

from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import rows_file

_PATH = "folder/snapshot-00000001.rows"


def run(data: bytes) -> None:
    content = data[1:]
    if data[:1] and data[0] % 2:
        content = _made(content)
    try:
        reader = rows_file.Reader(io.BytesIO(content), _PATH)
        for number, rows in reader.rows():
            count, floats = rows.content.shape
            assert floats == reader.about.tables[number].content_floats
            assert len(rows.ids) == len(rows.used) == len(rows.counts) == count
        assert reader.checksum is not None
    except CheckpointError as error:
        assert _PATH in str(error)
        return
    # The server takes what it says.
    for table in reader.about.tables:
        table.as_c()
    if reader.about.base is not None:
        number, checksum = reader.about.base
        assert isinstance(number, int) and isinstance(checksum, int)


def _made(data: bytes) -> bytes:
    """A file: its description up to a zero byte, then heads of pieces, each with a body."""
    about, _, rest = data.partition(b"\0")
    file = io.BytesIO()
    writer = rows_file._Writer(file)
    _add(writer, file, rows_file._ABOUT, 0, 0, 0, len(about), about)
    while len(rest) >= 5:
        kind, table, count, removed, floats = rest[:5]
        body = rest[5 : 5 + count * (16 + 4 * floats) + 8 * removed]
        _add(writer, file, kind % 4, table, count, removed, floats, body)
        rest = rest[5 + len(body) :]
    writer.end()
    return file.getvalue()


def _add(writer: rows_file._Writer, file: io.BytesIO, *fields: object) -> None:
    *head, body = fields
    header = rows_file._HEADER.pack(*head, 0)[:-4]
    checksum = zlib.crc32(body, zlib.crc32(header))
    file.write(header + struct.pack("<I", checksum) + body)
    writer._pieces += 1
    writer._running_checksum = rows_file._mix(writer._running_checksum, checksum)


def seeds() -> list[bytes]:
    table = {"name": "t", "description": "00ff", "floats": 2, "learning_rate": 0.5, "step": 3}
    about = json.dumps({"number": 2, "follows": [1, 5], "tables": [table]}).encode()
    row = struct.pack("<qqIIff", 1, 2, 3, 4, 5.0, 6.0)
    pieces = about + b"\0" + bytes([rows_file._ROWS, 0, 1, 1, 2]) + row
    nested = b'{"number":1,"follows":null,"tables":' + b"[" * 2000
    return [b"\1" + pieces, b"\0" + _made(pieces), b"\1" + nested]
