"""The file of a `CSVLogger` in an elastic job: all members have its text, and rank 0 writes it.

    begin          what `fit` has appended to
      |   text     what `CSVLogger` has written in this `fit`; the same on all members
      v   v
    ......| epoch,loss  0,2.5  1,1.9
                             ^
                             a rank 0 that was killed while it wrote may have written a part

The present rank 0 makes the file equal to the text: it keeps what is equal, cuts what follows, and
writes the rest. So the file has each line once, and a process that was stopped in the middle of a
line and continues writes the bytes that are there already. It leaves text that follows its own.
"""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.control.encoding import JsonObject


class CsvLogFile:
    """Stands for the file in a `CSVLogger`.

    Args:
      path: of the file, also a path that only TensorFlow can open, such as "gs://...".
      appends: whether the file keeps what it has.

    Attributes:
      text: the text written since the file was opened.
      begin: the bytes of the file before it.
      closed: whether it was closed.
    """

    def __init__(self, path: str, appends: bool) -> None:
        self._path = path
        self.begin = tf.io.gfile.stat(path).length if appends and tf.io.gfile.exists(path) else 0
        self.text = ""
        self.closed = False
        # The bytes of the text that this process has written.
        self._written = 0

    @property
    def is_new(self) -> bool:
        """Whether the file is empty."""
        return not self.begin and not self.text

    def write(self, text: str) -> int:
        """Takes text, for `save`; returns its length."""
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Does nothing: rank 0 calls `save`."""

    def close(self) -> None:
        """See `closed`."""
        self.closed = True

    def save(self) -> None:
        """Makes the file equal to the text.

        Raises:
          OSError: it cannot be written.
          tf.errors.OpError: the same, of a file that only TensorFlow can open.
        """
        content = self.text.encode()
        done, self._written = self._written, len(content)
        if "://" in self._path:
            self._save_remotely(content)
        else:
            # Never at the end of whatever is there: another process may have written the same line.
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
                # A file of another host, or a file that was deleted meanwhile, is shorter.
                size = file.seek(0, os.SEEK_END)
                begin = min(self.begin, size)
                done = min(done, size - begin)
                file.seek(begin + done)
                done += _equal(content[done:], file.read())
                if content and done == len(content):
                    # The text that follows is a successor's, which has continued while this process
                    # stood.
                    return
                file.seek(begin + done)
                file.truncate()
                file.write(content[done:])

    def _save_remotely(self, content: bytes) -> None:
        before = b""
        if self.begin:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                before = file.read(self.begin)
        # Such a file is replaced when it is closed.
        with tf.io.gfile.GFile(self._path, "wb") as file:
            file.write(before + content)

    def describe(self) -> JsonObject:
        """The state that a newcomer needs."""
        return {"begin": self.begin, "text": self.text}

    def restore(self, described: JsonObject) -> None:
        """Takes what `describe` has returned on another member."""
        self.begin, self.text = described["begin"], described["text"]


def _equal(expected: bytes, found: bytes) -> int:
    """The number of first bytes that are equal."""
    if found.startswith(expected):
        return len(expected)
    pairs = zip(expected, found, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))
