"""A `fit` with callbacks that write files, whose numbers are exact on any number of workers.

All rows of a batch are equal, and the loss is linear in the weights. So all sums are exact, and the
files of several workers equal one process's, byte by byte.

Rank 0 kills itself at a named place, if it is the first process that comes there.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tfdist.keras.callback import Callback

BATCH, STEPS = 16, 4
TIMEOUT = 120.0


def die(folder: Path, place: str) -> None:
    """Kills this process, if it is the first process that comes to a place."""
    try:
        (folder / f"died {place}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def model_of(library: str, **options: Any) -> Any:
    """A compiled model of "keras" or "tf_keras"; `options` are its optimizer's."""
    keras = importlib.import_module(library)
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((2,)) if library == "tf_keras" else keras.Input((2,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="dense"),
        ],
        name="model",  # is in the names of events
    )
    optimizer = keras.optimizers.SGD(0.125, momentum=0.5, **options)
    model.compile(optimizer, lambda y, found: y * found, metrics=["mae"])
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    """Rows of `STEPS` batches, which are equal within a batch."""
    x = np.array([[1.0, 2.0], [-3.0, 1.0], [2.0, 0.0], [1.0, -1.0]])
    return np.repeat(x, BATCH, axis=0), np.repeat([[1.0], [-1.0], [2.0], [3.0]], BATCH, axis=0)


def arguments(epochs: int, validates: bool = False) -> dict[str, Any]:
    """The arguments of `fit` besides the callbacks."""
    x, y = data()
    known = {"x": x, "y": y, "batch_size": BATCH, "epochs": epochs, "verbose": 0, "shuffle": False}
    return {**known, "validation_data": (-x, y)} if validates else known


class Faults(Callback):
    """Kills rank 0 of an elastic job, and lets it wait for a newcomer.

    Args:
      folder: shared by the processes.
      job: the members.
      deaths: where rank 0 dies, once in each place: "epoch begin 2", "batch end 1 3" (the last
        batch of the second epoch), "epoch end 2", "save of epoch 2", "saved of epoch 2",
        "train end".
      waits: the epochs before which a member that is alone waits for a newcomer.
    """

    def __init__(self, folder: Path, job: Any, deaths: tuple[str, ...], waits: tuple[int, ...]):
        super().__init__()
        self._folder, self._job, self._deaths, self._waits = folder, job, deaths, waits
        self._epoch = 0

    def at(self, place: str) -> None:
        """Kills this process, if rank 0 is to die here."""
        if place in self._deaths and self._job.rank == 0 and not self._job.is_newcomer:
            die(self._folder, place)

    def around_saving(self, model: Any) -> None:
        """Makes the saving of a model a place of faults."""
        for name in ("save", "save_weights"):
            setattr(type(model), name, self._counted(getattr(type(model), name)))

    def _counted(self, original: Any) -> Any:
        def saving(model: Any, *args: Any, **kwargs: Any) -> Any:
            where = f"of epoch {self._epoch}"
            self.at(f"save {where}")
            result = original(model, *args, **kwargs)
            self.at(f"saved {where}")
            return result

        return saving

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if epoch in self._waits and self._job.size == 1:
            deadline = time.monotonic() + TIMEOUT
            while not self._job.flags()[0]:
                assert time.monotonic() < deadline, "no newcomer comes"
                time.sleep(0.01)
        self.at(f"epoch begin {epoch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.at(f"batch end {self._epoch} {batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.at(f"epoch end {epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        self.at("train end")


def contents(folder: Path) -> dict[str, Any]:
    """The files below a folder, by path: weights, events, lines; of other files their names."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if "events.out" in name:
            found.setdefault(str(path.parent.relative_to(folder)), []).extend(events(path))
        elif path.suffix in (".csv", ".txt"):
            found[name] = path.read_bytes()
        elif path.suffix in (".h5", ".keras"):
            found[name] = arrays(path)
        elif path.is_file():
            found[name] = "file"
    return {key: sorted(v, key=repr) if isinstance(v, list) else v for key, v in found.items()}


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares what `contents` has returned."""
    assert list(found) == list(expected)
    for name, content in expected.items():
        assert found[name] == content, name


def arrays(path: Path) -> dict[str, Any]:
    """The variables in a file of a model, by name."""
    content: Any = path
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            content = io.BytesIO(archive.read("model.weights.h5"))
    found = {}
    with h5py.File(content, "r") as file:

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu" and "tfdist" not in name:
                found[name] = item[()].tolist()

        file.visititems(visit)
    return found


def events(path: Path) -> list[tuple[int, str, Any]]:
    """Step, tag and value of the scalars in an event file; its last record may be half a record."""
    found, content, at = [], path.read_bytes(), 0
    while at + 12 <= len(content):
        (size,) = struct.unpack("<Q", content[at : at + 8])
        record = content[at + 12 : at + 12 + size]
        if len(record) < size:
            break
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            array = tf.make_ndarray(value.tensor)
            found.append((event.step, value.tag, array.tolist() if array.dtype.kind == "f" else ""))
        at += 16 + size
    return found


def replace_package() -> None:
    """Lets a `TensorBoard` write where the package of that name is not installed."""

    def scalar(name: str, value: Any, step: Any = None) -> Any:
        value = tf.cast(value, tf.float32)
        return tf.summary.write(name, value, step=step, metadata=_metadata("scalars"))

    def histogram(name: str, value: Any, step: Any = None) -> Any:
        value = tf.cast(tf.convert_to_tensor(value), tf.float32)
        return tf.summary.write(name, value, step=step, metadata=_metadata("histograms"))

    # Modules of one content: the last one is tf_keras's.
    for name in ("tensorflow", "tensorflow.compat.v2"):
        summary = importlib.import_module(name).summary
        summary.scalar, summary.histogram = scalar, histogram
    module = importlib.import_module("tensorflow.summary")
    module.scalar, module.histogram = scalar, histogram


def _metadata(plugin: str) -> Any:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return metadata
