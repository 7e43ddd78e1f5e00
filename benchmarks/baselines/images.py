"""Images in a TFRecord file, for benchmarks/input_images.py; without TensorFlow and PyTorch.

A record is the number of an image, 8 bytes, and its JPEG. Every reader crops and flips an image by
its number, so that all have the same images.
"""

from __future__ import annotations

import struct

SIZE, CROP, BATCH = 128, 96, 32
NUMBER = struct.Struct("<q")
# A record is framed by its length, a checksum of the length, and a checksum of the content.
_LENGTH, _CHECKSUM = struct.Struct("<Q"), 4


def corner_of(number: int) -> tuple[int, int]:
    """The first row and the first column of the crop of an image."""
    return number * 7 % (SIZE - CROP + 1), number * 13 % (SIZE - CROP + 1)


def is_flipped(number: int) -> bool:
    """Whether columns of an image are in reverse."""
    return number % 2 == 1


def positions(path: str) -> list[tuple[int, int]]:
    """The first byte and the number of bytes of each record of a TFRecord file."""
    found = []
    with open(path, "rb") as file:
        while head := file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            begin = file.tell() + _CHECKSUM
            found.append((begin, length))
            file.seek(begin + length + _CHECKSUM)
    return found
