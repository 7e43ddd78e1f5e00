"""The reading of idx files, and the order in which sources of images are tried."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SOURCE = Path(__file__).resolve().parents[3] / "keras_examples" / "data.py"


@pytest.fixture(scope="module")
def data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keras_examples_data", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def idx(array: np.ndarray, element: int = 0x08) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, element, array.ndim, *array.shape)
    return header + array.tobytes()


def images(count: int) -> np.ndarray:
    return (np.arange(count * 28 * 28) % 251).astype(np.uint8).reshape(count, 28, 28)


def labels(count: int) -> np.ndarray:
    return (np.arange(count) % 10).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fashion-MNIST in small: 30 training and 20 test images."""
    for part, count in (("train", 30), ("t10k", 20)):
        write(tmp_path / f"{part}-images-idx3-ubyte.gz", idx(images(count)))
        write(tmp_path / f"{part}-labels-idx1-ubyte.gz", idx(labels(count)))
    return tmp_path


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def test_reads_what_was_written(
    data: ModuleType, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    got = data.load_fashion_mnist(folder)
    np.testing.assert_array_equal(got.train_images, images(30))
    np.testing.assert_array_equal(got.train_labels, labels(30))
    np.testing.assert_array_equal(got.test_images, images(20))
    np.testing.assert_array_equal(got.test_labels, labels(20))
    assert {array.dtype for array in got[:4]} == {np.dtype(np.uint8)}
    assert got.is_fashion_mnist
    assert capsys.readouterr().out == f"images: Fashion-MNIST in {folder}\n"


def test_only_the_announcing_worker_prints(
    data: ModuleType, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    data.load_fashion_mnist(folder, announce=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x08", "expected at least 16 bytes of idx header, received 3"),
        (idx(labels(9) + 100)[:15] + b"\0" * 9, "expected the idx magic 0x00000803"),
        (idx(images(2), element=0x0D), r"unsigned bytes, 3 dimensions\), received 0x00000d03"),
        (b"\x12\x34" + idx(images(2))[2:], "received 0x12340803"),
        (idx(images(2))[:-1], r"expected 1568 elements for its shape \(2, 28, 28\), received 1567"),
        (idx(images(2)) + b"\0", "received 1569"),
        (struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 2, 1), "expected 18446744065119617025 el"),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected(
    data: ModuleType, folder: Path, content: bytes, message: str
) -> None:
    path = write(folder / "train-images-idx3-ubyte.gz", content)
    with pytest.raises(ValueError, match=message) as caught:
        data.load_fashion_mnist(folder)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"<html>not found</html>",
        lambda whole: whole[:5],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-4],
        lambda whole: whole[:12] + b"\xff" * (len(whole) - 12),
        lambda whole: whole[:-8] + b"\0" * 8,
    ],
)
def test_a_broken_gzip_file_is_named(
    data: ModuleType, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="expected a whole gzip file") as caught:
        data.load_fashion_mnist(folder)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte.gz", labels(29), "received 30 images and 29 labels"),
        ("t10k-labels-idx1-ubyte.gz", labels(20) + 1, "expected 0 to 9, received 10"),
        (
            "t10k-images-idx3-ubyte.gz",
            np.zeros((20, 27, 28), np.uint8),
            "expected 28 x 28 pixels, received 27 x 28",
        ),
    ],
)
def test_images_and_labels_have_to_fit(
    data: ModuleType, folder: Path, name: str, array: np.ndarray, message: str
) -> None:
    write(folder / name, idx(array))
    with pytest.raises(ValueError, match=message):
        data.load_fashion_mnist(folder)


def test_keras_is_asked_when_the_files_are_missing(
    data: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    from keras.datasets import fashion_mnist

    parts = ((images(4), labels(4)), (images(3), labels(3)))
    monkeypatch.setattr(fashion_mnist, "load_data", lambda: parts)
    got = data.load_fashion_mnist(tmp_path)
    np.testing.assert_array_equal(got.test_images, images(3))
    np.testing.assert_array_equal(got.train_labels, labels(4))
    assert got.is_fashion_mnist
    assert capsys.readouterr().out == "images: Fashion-MNIST from Keras's download\n"


def test_digits_are_the_last_resort_and_loud(
    data: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    offline(monkeypatch)
    got = data.load_fashion_mnist(tmp_path)
    assert not got.is_fashion_mnist
    assert got.train_images.shape == (1500, 28, 28) and got.test_images.shape == (297, 28, 28)
    assert got.train_images.dtype == np.uint8
    # Each of the 8 x 8 pixels is a block of 3 x 3; the border is empty.
    inside = got.train_images[:, 2:26, 2:26]
    np.testing.assert_array_equal(inside, inside[:, 1::3, 1::3].repeat(3, 1).repeat(3, 2))
    assert got.train_images.max() == 255
    assert int(got.train_images.sum()) == int(inside.sum())
    assert set(got.train_labels) == set(range(10))
    printed = capsys.readouterr().out
    assert "FASHION-MNIST IS NOT AVAILABLE" in printed
    assert "no such file (Debian package dataset-fashion-mnist)" in printed
    assert "no network here" in printed


def test_without_any_source_the_error_lists_them_all(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RuntimeError) as caught:
        data.load_fashion_mnist(tmp_path)
    text = str(caught.value)
    for part in ("dataset-fashion-mnist", "no network here", "pip install scikit-learn"):
        assert part in text


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from keras.datasets import fashion_mnist

    def fail() -> None:
        raise Exception("URL fetch failure: no network here")

    monkeypatch.setattr(fashion_mnist, "load_data", fail)
