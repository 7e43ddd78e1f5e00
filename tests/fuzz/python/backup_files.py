"""The state of a training in a checkpoint file of Keras: `tfdist/keras/state_file.py`.

Input: a byte for the form, then a `.keras` archive, or what such an archive has of ours. A file is
read, or refused with a ValueError or OSError that names it. (The code that reads HDF5 is h5py's
own.)
"""

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from tfdist.data.position import InputPosition
from tfdist.keras import state_file
from tfdist.keras.own_state import OwnState
from tfdist.keras.training_state import TrainingState


def run(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _read(Path(folder) / "backup.keras", data)


def _read(path: Path, data: bytes) -> None:
    content = data[1:]
    if data[:1] and data[0] % 2 == 0:
        if content.startswith(state_file._HDF5):
            return
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(state_file._MEMBER, content)
    try:
        found = state_file.read_state(path)
        if found is None:
            return
        state = state_file.unpacked(found)
    except (ValueError, OSError) as error:
        assert str(error)
        return
    again = state_file.unpacked(state_file._packed(state))
    assert again.position == state.position
    assert list(again.own.values) == list(state.own.values)


def seeds() -> list[bytes]:
    own = OwnState({"a": np.arange(3.0), "b": np.array("text")})
    content = state_file._packed(TrainingState(InputPosition(1, 2, seed=3), own))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr(state_file._MEMBER, content)
    deflated = file.getvalue()
    return [b"\1" + content, b"\0" + deflated, b"\0no archive", b"\1", b"\1[" + b"[" * 2000]
