"""A small prediction whose workers stop in mid-job until they are let go.

Each process maps a first part, and some records of further ones. Then it waits for the file `go`:
so a worker can be killed while all have committed something, and have more in work.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import keras

from support.patience import wait_until
from tfdist.cli.main import main
from tfdist.prediction.folder import OutputFolder

ROWS, PART = 360, 30
# A worker commits its first part with them, however many records are mapped at a time.
_BEFORE_THE_HOLD = 60
_MAP = f"""
import os, threading, time
import tensorflow as tf

lock, seen = threading.Lock(), 0

def hold(id):
    global seen
    with lock:
        seen += 1
        is_held = seen > {_BEFORE_THE_HOLD}
    while is_held and not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.01)
    return id

def held(line):
    fields = tf.strings.split(line, ",")
    id = tf.strings.to_number(fields[0], tf.int64)
    id = tf.ensure_shape(tf.numpy_function(hold, [id], tf.int64), [])
    return {{"id": id, "x": tf.strings.to_number(fields[1:3])}}
"""


class HeldPrediction:
    """The files of the prediction, and what its workers do.

    Args:
      folder: for input, model, map and output; all workers see it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out"
        self._killed: set[str] = set()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.export(folder / "served", verbose=False)
        lines = [f"{i},{i / 8},{-i}" for i in range(ROWS)]
        (folder / "in-0.csv").write_text("\n".join(lines[:180]) + "\n")
        (folder / "in-1.csv").write_text("\n".join(lines[180:]) + "\n")
        (folder / "prep.py").write_text(_MAP)

    def words(self, output: Path | None = None) -> list[str]:
        """Returns the words of the command after `tfdist`."""
        return [
            *("predict", "--model", f"{self.folder}/served", "--input", f"{self.folder}/in-*.csv"),
            *("--reader", "lines", "--map", f"{self.folder}/prep.py:held", "--keep", "id"),
            *("--output", str(output or self.output), "--format", "jsonl"),
            *("--task-size", str(PART), "--batch-size", "8", "--lease", "5"),
        ]

    def is_held(self, workers: int) -> bool:
        """Whether workers have committed a part each, and have another one in work.

        Args:
          workers: their number, without killed ones.
        """
        owners = set(self._owners()) - self._killed
        return len(owners) == workers and len(self._folder().finished()) >= workers

    def wait_until_held(self, workers: int, runs: Callable[[], bool]) -> None:
        """Waits until `is_held`.

        Args:
          workers: their number, without killed ones.
          runs: whether the job still runs.
        """

        def is_held() -> bool:
            assert runs(), "the job has ended"
            return self.is_held(workers)

        wait_until(is_held, f"{workers} workers in mid-job", 200)

    def kill_one(self) -> int:
        """Kills a worker in mid-job; returns its process's id."""
        assert len(self._folder().finished()) < ROWS // PART
        owner = min(set(self._owners()) - self._killed)
        self._killed.add(owner)
        pid = int(owner.split("-")[1])
        os.kill(pid, signal.SIGKILL)
        return pid

    def let_go(self) -> None:
        """Lets all workers work."""
        (self.folder / "go").touch()

    def check(self) -> None:
        """Asserts that all records are there, in the files that one undisturbed process makes.

        This process is that one: it predicts into another folder.
        """
        alone = self.folder / "alone"
        self.let_go()
        assert main(self.words(alone)) == 0
        expected, found = _parts(alone), _parts(self.output)
        assert found == expected and len(found) == ROWS // PART
        lines = "".join(found[name].decode() for name in sorted(found)).splitlines()
        assert [json.loads(line)["id"] for line in lines] == list(range(ROWS))
        assert (self.output / "_SUCCESS").exists()
        assert not list((self.output / "_rejected").glob("*"))

    def _folder(self) -> OutputFolder:
        return OutputFolder(self.output)

    def _owners(self) -> list[str]:
        return [*self._folder().claimed().values()] if self._folder().claims.is_dir() else []


def _parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}
