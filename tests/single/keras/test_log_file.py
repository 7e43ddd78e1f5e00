"""The file of a `CSVLogger` in an elastic job, after a rank 0 that was killed while it wrote."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf

from tfdist.keras.log_file import CsvLogFile

BEFORE, TEXT = "an older line\r\n", "epoch,loss\r\n0,2.5\r\n1,1.5\r\n"


@pytest.fixture(params=["", "file://"], ids=["local", "remote"])
def path(request, tmp_path):
    return f"{request.param}{tmp_path}/log.csv"


def content(path):
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read().decode()


def put(path, text):
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(text)


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("cut", [0, 12, 15, len(TEXT) - 1])
@pytest.mark.parametrize("rest", ["", "1,9"])
def test_a_successor_makes_the_file_whole(path, appends, cut, rest):
    before = BEFORE if appends else ""
    put(path, BEFORE)
    file = CsvLogFile(path, appends)
    put(path, before + TEXT[:cut] + rest)
    file.write(TEXT)
    file.save()
    assert content(path) == before + TEXT


def test_rank_0_writes_line_by_line(path):
    file = CsvLogFile(path, appends=False)
    file.save()
    assert content(path) == ""
    for line in TEXT.splitlines(keepends=True):
        file.write(line)
        file.save()
        assert content(path).endswith(line)
    assert content(path) == TEXT


def test_a_newcomer_goes_on(path):
    put(path, BEFORE)
    first, newcomer = CsvLogFile(path, appends=True), CsvLogFile(path, appends=True)
    first.write(TEXT)
    first.save()
    newcomer.restore(first.describe())
    assert not newcomer.is_new
    newcomer.write("2,0.5\r\n")
    newcomer.save()
    assert content(path) == BEFORE + TEXT + "2,0.5\r\n"


def test_a_file_that_was_deleted_is_written_again(tmp_path):
    path = tmp_path / "log.csv"
    file = CsvLogFile(str(path), appends=False)
    file.write(TEXT)
    file.save()
    path.unlink()
    file.write("2,0.5\r\n")
    file.save()
    assert content(str(path)) == TEXT + "2,0.5\r\n"


def test_a_stopped_process_that_continues_writes_the_bytes_that_are_there(tmp_path):
    path = str(tmp_path / "log.csv")
    stopped, successor = CsvLogFile(path, appends=False), CsvLogFile(path, appends=False)
    for file in (stopped, successor):
        file.write("epoch,loss\r\n0,2.5\r\n")
    stopped.save()
    stopped.write("1,1.5\r\n")
    inode = os.stat(path).st_ino
    for line in ("1,1.5\r\n", "2,0.5\r\n"):
        successor.write(line)
        successor.save()
    stopped.save()
    assert os.stat(path).st_ino == inode  # it wrote into the file that the other has
    assert content(path) == TEXT + "2,0.5\r\n"
