"""In a job that is not elastic one worker writes callbacks' files; the others leave nothing."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import tfdist
from support.elastic.file_callbacks import (
    arguments,
    check_equal,
    contents,
    model_of,
    replace_package,
)
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served
from tfdist.callbacks import OnRankZero
from tfdist.keras.callback import Callback

EPOCHS = 2


class Notes(Callback):
    """Writes a line for each call, with a number that it counts."""

    def __init__(self, path):
        super().__init__()
        self._path, self.calls = path, 0

    def _note(self, what):
        self.calls += 1
        with self._path.open("a") as file:
            file.write(f"{self.calls} {what}\n")

    def on_train_begin(self, logs=None):
        self._note(f"begin {self.params['epochs']} {self.model.name}")

    def on_epoch_end(self, epoch, logs=None):
        self._note(f"epoch {epoch} {sorted(logs)}")

    def on_test_end(self, logs=None):
        self._note("test")

    def on_train_end(self, logs=None):
        self._note("end")


def fit_twice(library, folder, sent, scope):
    """Two `fit`s that append to one log."""
    keras = importlib.import_module(library)
    replace_package()
    monitor = keras.callbacks.RemoteMonitor()
    module = importlib.import_module(type(monitor).__module__)
    module.requests = SimpleNamespace(
        post=lambda *args, **kwargs: sent.append(args), exceptions=module.requests.exceptions
    )
    folder.mkdir(exist_ok=True)
    with scope:
        model = model_of(library)
    callbacks = keras.callbacks
    for _ in range(2):
        model.fit(
            **arguments(EPOCHS, validates=True),
            callbacks=[
                callbacks.CSVLogger(str(folder / "log.csv"), append=True),
                callbacks.TensorBoard(str(folder / "events"), histogram_freq=1),
                monitor,
                OnRankZero(Notes(folder / "own.txt")),
                OnRankZero(lambda: Notes(folder / "made.txt")),
            ],
        )


@pytest.mark.long("*tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@on_ranks(2)
def test_rank_0_alone_writes(ctx, tmp_path, library):
    sent, expected_sent = [], []
    tempfile.tempdir = str(tmp_path / f"scratch {ctx.rank}")
    Path(tempfile.tempdir).mkdir()
    fit_twice(library, tmp_path / "files", sent, tfdist.MultiWorkerMirroredStrategy().scope())
    ctx.barrier("written")
    assert list(Path(tempfile.tempdir).glob("tfdist-*")) == []
    if ctx.rank != 0:
        assert sent == []
        return
    fit_twice(library, tmp_path / "one", expected_sent, contextlib.nullcontext())
    found, expected = contents(tmp_path / "files"), contents(tmp_path / "one")
    check_equal(found, expected)
    assert sent == expected_sent
    assert len([p for p in tmp_path.rglob("files/events/train/events*")]) == 2  # of two `fit`s


@on_job(2)
def test_with_parameter_servers_the_chief_writes(ctx, tmp_path):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    fit_twice("keras", tmp_path / f"files {ctx.rank}", sent := [], strategy.scope())
    found = contents(tmp_path / f"files {ctx.rank}")
    if ctx.rank != 0:
        assert found == {} and sent == []
        return
    lines = found["log.csv"].decode().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", *"01" * 2]
    assert {step for step, tag, _ in found["events/train"] if tag == "epoch_loss"} == {0, 1}
    assert len(sent) == 2 * EPOCHS


def test_on_rank_zero_refuses_what_is_no_callback():
    with pytest.raises(TypeError, match="OnRankZero: expected a callback, or a function .* 7"):
        OnRankZero(7)
    made = OnRankZero(lambda: 7)
    model = model_of("keras")
    with pytest.raises(TypeError, match="expected a function that returns a callback"):
        model.fit(**arguments(1), callbacks=[made])
