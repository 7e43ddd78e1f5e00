"""Fashion-MNIST as numpy arrays, from the first source that this machine has.

Run as a script it prints the source, after a download if necessary:

    python keras_examples/data.py

The sources, in this order:

1. the Debian package `dataset-fashion-mnist` (`sudo apt-get install dataset-fashion-mnist`);
2. Keras's own download, kept in `~/.keras`;
3. scikit-learn's digits, enlarged to the same shape: fewer and easier images, so that
   an example can run; its accuracy is then meaningless.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import socket
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
SIDE = 28  # height and width of an image, in pixels
CLASSES = 10
_DOWNLOAD_TIMEOUT = 30.0  # seconds without a byte
_UNSIGNED_BYTE = 0x08  # the idx format's code of its element type


class Images(NamedTuple):
    """Labelled images, split into a training and a test part.

    Attributes:
      train_images, test_images: uint8, shape (n, 28, 28), 0 is background, 255 brightest.
      train_labels, test_labels: uint8, shape (n,), values 0 to 9.
      source: a description of the source.
      is_fashion_mnist: False for the digits.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str
    is_fashion_mnist: bool = True


def load_fashion_mnist(folder: Path = FOLDER, announce: bool = True) -> Images:
    """Returns the images from the first source that has them.

    Args:
      folder: of the four idx files of the Debian package.
      announce: whether to print the source; pass False on all workers but one.

    Returns:
      60,000 training and 10,000 test images, or 1,500 and 297 digits.

    Raises:
      ValueError: a file in `folder` is damaged. Other sources are not tried then, so that the
        user learns of the damage.
      RuntimeError: no source has images; the text has the reason for each.
    """
    failures = []
    for read in (lambda: read_folder(folder), _download, _digits):
        try:
            images = read()
        except (FileNotFoundError, _SourceUnavailable) as error:
            failures.append(str(error))
            continue
        if announce:
            _announce(images, failures)
        return images
    raise RuntimeError("no images found:\n  " + "\n  ".join(failures))


def read_folder(folder: Path) -> Images:
    """Reads the four files of Fashion-MNIST (or of MNIST) in a folder.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is damaged, or images and labels do not fit together.
    """
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3)
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)
        if images.shape[1:] != (SIDE, SIDE):
            raise ValueError(
                f"{folder}: {part} images: expected {SIDE} x {SIDE} pixels, "
                f"received {images.shape[1]} x {images.shape[2]}"
            )
        if len(images) != len(labels):
            raise ValueError(
                f"{folder}: {part}: expected one label for each image, "
                f"received {len(images)} images and {len(labels)} labels"
            )
        if labels.size and labels.max() >= CLASSES:
            raise ValueError(
                f"{folder}: {part} labels: expected 0 to {CLASSES - 1}, received {labels.max()}"
            )
        parts += [images, labels]
    return Images(*parts, source=f"Fashion-MNIST in {folder}")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads a gzipped idx file of unsigned bytes.

    The format (described at http://yann.lecun.com/exdb/mnist/): two zero bytes, the element type,
    the number of dimensions, each dimension's size as big-endian uint32, then the elements.

    Args:
      path: the file.
      dimensions: how many dimensions it should have.

    Returns:
      A uint8 array of that many dimensions.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not a gzipped idx file of unsigned bytes with these dimensions, whole.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file (Debian package dataset-fashion-mnist)")
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: expected a whole gzip file, received: {error}") from error
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(
            f"{path}: expected at least {start} bytes of idx header, received {len(content)}"
        )
    zeros, element, received = struct.unpack(">HBB", content[:4])
    if zeros != 0 or element != _UNSIGNED_BYTE or received != dimensions:
        raise ValueError(
            f"{path}: expected the idx magic 0x0000{_UNSIGNED_BYTE:02x}{dimensions:02x} (unsigned "
            f"bytes, {dimensions} dimensions), received 0x{content[:4].hex()}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = int(np.prod(shape, dtype=np.uint64))
    if len(content) - start != expected:
        raise ValueError(
            f"{path}: expected {expected} elements for its shape {shape}, "
            f"received {len(content) - start}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


class _SourceUnavailable(Exception):
    """This machine cannot use a source; the text has the reason."""


def _download() -> Images:
    # Imported here: reading the Debian files should not import TensorFlow.
    try:
        from keras.datasets import fashion_mnist
    except ImportError as error:
        raise _SourceUnavailable(f"Keras's download: {error}") from error
    with _one_at_a_time("fashion-mnist-download"), _socket_timeout(_DOWNLOAD_TIMEOUT):
        try:
            (train_images, train_labels), (test_images, test_labels) = fashion_mnist.load_data()
        except Exception as error:  # Keras wraps every network error in a bare Exception.
            raise _SourceUnavailable(f"Keras's download: {error}") from error
    return Images(
        train_images,
        train_labels,
        test_images,
        test_labels,
        source="Fashion-MNIST from Keras's download",
    )


def _digits() -> Images:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise _SourceUnavailable(
            f"scikit-learn's digits: {error} (pip install scikit-learn)"
        ) from error
    digits = load_digits()
    # 8 x 8 pixels of 0 to 16, each drawn as 3 x 3, with a border of 2: 28 x 28 pixels of 0 to 255.
    images = (digits.images * (255 / 16)).astype(np.uint8)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    labels = digits.target.astype(np.uint8)
    return Images(
        images[:1500],
        labels[:1500],
        images[1500:],
        labels[1500:],
        source="scikit-learn's digits",
        is_fashion_mnist=False,
    )


def _announce(images: Images, failures: list[str]) -> None:
    if images.is_fashion_mnist:
        print(f"images: {images.source}", flush=True)
        return
    lines = [
        "FASHION-MNIST IS NOT AVAILABLE. These are scikit-learn's digits instead:",
        f"{len(images.train_images)} small images of another kind. The accuracy printed below",
        "says nothing about Fashion-MNIST. Sources tried:",
        *(f"  {failure}" for failure in failures),
    ]
    print("\n".join(["", "!" * 78, *(f"!! {line}" for line in lines), "!" * 78, ""]), flush=True)


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Serializes the workers of one machine, so that no two write a file at the same time."""
    # One file per user: another user's cannot be opened.
    with open(Path(tempfile.gettempdir()) / f"tfdist-{os.getuid()}-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # bounded by the download timeout of its holder
        yield


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


if __name__ == "__main__":
    try:
        load_fashion_mnist()
    except (RuntimeError, ValueError) as problem:
        sys.exit(f"{Path(__file__).name}: {problem}")
