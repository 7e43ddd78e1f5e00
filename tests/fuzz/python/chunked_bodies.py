"""Bodies of HTTP in chunks: `tfdist/serving/model_server/chunked.py`.

Input: the bytes after the head of a request. They are a body within the maximum, whose chunks were
announced before, or are refused with an error of the reader. In one chunk the body is the same.
"""

import io

from tfdist.serving.model_server.chunked import BodyTooLarge, ChunkError, read_chunks

_MAXIMUM = 300  # bytes


def run(data: bytes) -> None:
    file, sizes = io.BytesIO(data), []
    try:
        body = read_chunks(file, _MAXIMUM, sizes.append)
    except (BodyTooLarge, ChunkError, EOFError):
        assert sum(sizes) <= _MAXIMUM
        return
    assert len(body) == sum(sizes) <= _MAXIMUM and all(sizes)
    assert data[: file.tell()].endswith(b"\r\n\r\n")
    again = io.BytesIO(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n")
    assert read_chunks(again, _MAXIMUM, sizes.append) == body and not again.read()


def seeds() -> list[bytes]:
    return [
        b"5\r\nhello\r\n0\r\n\r\n",
        b'A;x="y"\r\n0123456789\r\n2 \r\n{}\r\n000\r\nName: value\r\n\r\nGET / HTTP/1.1\r\n',
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"1\r\n \r\n1\r\n",
        b"3\nabc\n",
    ]
