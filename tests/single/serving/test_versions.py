"""Versions of a model come and go while requests are answered."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.patience import wait_until
from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import write_affine
from tfdist.serving.model_server.call_error import CallError
from tfdist.serving.model_server.saved_model import stamp_of
from tfdist.serving.model_server.versions import NoModelError, State, Versions

X = np.zeros([1, 3], np.float32)


def until(condition) -> None:
    wait_until(condition, "the expected state", 20)


class Model:
    """Stands for a SavedModel."""

    def __init__(self, folder: Path, version: int) -> None:
        text = (folder / "saved_model.pb").read_text()
        if text != "good":
            raise ValueError(f"is {text}")
        self.version = version
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def write(folder: Path, version: int | str, text: str = "good") -> None:
    arriving = folder / "arriving"
    arriving.mkdir(parents=True)
    (arriving / "saved_model.pb").write_text(text)
    arriving.rename(folder / str(version))


def followed(folder: Path, **options: int) -> Versions:
    versions = Versions("m", folder, Model, period=0.01, **options)
    versions.begin()
    return versions


def states(versions: Versions) -> list[tuple[int, str, str]]:
    return [(s.version, s.state.name, s.problem) for s in versions.states()]


def newest(versions: Versions) -> int:
    with versions.lease() as model:
        return model.version


def test_a_number_of_more_than_64_bits_is_no_version(tmp_path):
    write(tmp_path, time.time_ns())
    write(tmp_path, 1 << 63)  # no message of TensorFlow Serving could name it
    versions = followed(tmp_path)
    try:
        assert newest(versions) < 1 << 63
    finally:
        versions.close()


def test_the_newest_version_answers(tmp_path):
    for name in (9, 10, "0011", "12x", "new", "²"):
        write(tmp_path, name)
    versions = followed(tmp_path)
    assert newest(versions) == 11
    write(tmp_path, 12)
    until(lambda: newest(versions) == 12)
    # A version that is removed gives way to the one before it.
    shutil.rmtree(tmp_path / "12")
    until(lambda: newest(versions) == 11)
    versions.close()
    assert [s.state for s in versions.states()] == [State.END] * 2


def test_a_request_keeps_its_version(tmp_path):
    write(tmp_path, 1)
    versions = followed(tmp_path)
    with versions.lease() as old:
        write(tmp_path, 2)
        until(lambda: newest(versions) == 2)
        until(lambda: states(versions)[1] == (1, "UNLOADING", ""))
        assert not old.is_closed
        with (
            pytest.raises(CallError, match=r"Specific\(m, 1\); available: \[2\]"),
            versions.lease(1),
        ):
            pass
        # It comes again while it is unloaded.
        shutil.rmtree(tmp_path / "2")
        until(lambda: newest(versions) == 1)
        with versions.lease() as new:
            assert new is not old
    assert old.is_closed and not new.is_closed
    assert (1, "AVAILABLE", "") in states(versions)
    versions.close()


def test_several_versions_are_kept(tmp_path):
    for version in (1, 2, 3):
        write(tmp_path, version)
    versions = followed(tmp_path, kept=2)
    for version in (2, 3):
        with versions.lease(version) as model:
            assert model.version == version
    with pytest.raises(CallError), versions.lease(1):
        pass
    write(tmp_path, 4)
    until(
        lambda: (
            [s[:2] for s in states(versions)][:3]
            == [(4, "AVAILABLE"), (3, "AVAILABLE"), (2, "END")]
        )
    )
    versions.close()


def test_a_damaged_version_is_left_out_until_it_changes(tmp_path):
    write(tmp_path, 1)
    versions = followed(tmp_path)
    write(tmp_path, 2, "bad")
    until(lambda: states(versions)[0] == (2, "END", "ValueError: is bad"))
    assert newest(versions) == 1
    (tmp_path / "2" / "saved_model.pb").write_text("good")
    until(lambda: newest(versions) == 2)
    versions.close()


def test_a_start_with_a_damaged_newest_version(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2, "bad")
    versions = followed(tmp_path)
    assert newest(versions) == 1
    assert [s[1] for s in states(versions)] == ["END", "AVAILABLE"]
    versions.close()


def test_servers_of_tables_that_do_not_answer_are_asked_again(tmp_path, caplog):
    write(tmp_path, 1)
    away = threading.Event()
    asked = []

    def load(folder, version):
        if away.is_set():
            asked.append(version)
            raise tf.errors.UnavailableError(None, None, f"no server of tables: {len(asked)}")
        return Model(folder, version)

    versions = Versions("m", tmp_path, load, period=0.01)
    versions.begin()
    away.set()
    write(tmp_path, 2)
    until(lambda: len(asked) > 3)
    assert newest(versions) == 1
    away.clear()
    until(lambda: newest(versions) == 2)
    versions.close()
    assert caplog.text.count("version 2 cannot be loaded") == 1


def test_two_folders_of_one_version(tmp_path, caplog):
    """The one without zeros in front is taken, as by TensorFlow Serving, and one line says so."""
    for name in ("7", "007", "07"):
        write(tmp_path, name)
    loaded = []

    def load(folder, version):
        loaded.append(folder.name)
        return Model(folder, version)

    versions = Versions("m", tmp_path, load, period=0.01)
    versions.begin()
    assert (newest(versions), loaded) == (7, ["7"])
    write(tmp_path, 8)
    until(lambda: newest(versions) == 8)
    versions.close()
    told = [r.message for r in caplog.records if "expected one folder for version 7" in r.message]
    assert len(told) == 2
    assert told[1].endswith(f"{tmp_path / '07'} is ignored")


def test_a_model_is_not_there_before_it_is_loaded(tmp_path):
    write(tmp_path, 1)
    versions = Versions("m", tmp_path, Model)
    with pytest.raises(CallError, match="model m is still being loaded") as raised:
        newest(versions)
    assert raised.value.status == 503
    versions.close()


def test_a_version_is_removed_while_it_is_read(tmp_path):
    for version in (1, 2):
        write(tmp_path, version)

    def load(folder, version):
        if version == 2:
            shutil.rmtree(folder)
        return Model(folder, version)

    versions = Versions("m", tmp_path, load, period=0.01)
    versions.begin()
    assert newest(versions) == 1
    versions.close()


def test_folders_that_come_and_go_while_a_version_is_looked_at(tmp_path):
    ends = threading.Event()

    def change():
        while not ends.is_set():
            (tmp_path / "1" / "variables").mkdir(parents=True)
            shutil.rmtree(tmp_path / "1")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(2000):
            stamp_of(tmp_path / "1")
    finally:
        ends.set()
        changing.join()


def test_versions_without_files_keep_the_present_one(tmp_path, caplog):
    write(tmp_path / "m", 1)
    versions = followed(tmp_path / "m")
    shutil.rmtree(tmp_path / "m")
    until(lambda: "keeps its version" in caplog.text)
    assert newest(versions) == 1
    write(tmp_path / "m", 2)
    until(lambda: newest(versions) == 2)
    versions.close()
    assert caplog.text.count("keeps its version") == 1


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ([], "received an empty folder"),
        (["1/variables", "x"], r"received \['1', 'x'\]"),
        (["saved_model.pb"], "received a SavedModel itself"),
        (["3/saved_model.pb"], "no version can be loaded; 3: ValueError: is"),
    ],
)
def test_a_folder_without_a_model(tmp_path, files, text):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    with pytest.raises(NoModelError, match=text):
        followed(tmp_path)
    with pytest.raises(NoModelError, match="expected a folder, received none"):
        followed(tmp_path / "none")


def test_no_request_fails_while_versions_change(tmp_path):
    folder = tmp_path / "affine"
    write_affine(folder, 1)
    ends = threading.Event()
    received: list[list[float]] = []
    errors: list[BaseException] = []

    def ask(server, values):
        try:
            with stub_of(server) as stub:
                while not ends.is_set():
                    response = stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT)
                    version = response.model_spec.version.value
                    y = tf.make_ndarray(response.outputs["y"])
                    np.testing.assert_array_equal(y, np.full([1, 3], version))
                    values.append(version)
        except BaseException as error:
            errors.append(error)

    with serving({"affine": folder}) as server:
        clients = []
        for _ in range(3):
            received.append([])
            clients.append(threading.Thread(target=ask, args=(server, received[-1]), daemon=True))
            clients[-1].start()
        for version in (2, 3, 4):
            write_affine(folder, version)
            if version == 3:
                # As a job does that keeps the latest versions only.
                shutil.rmtree(folder / "1")
            until(lambda v=version: errors or all(seen[-1:] == [v] for seen in received))
        ends.set()
        for client in clients:
            client.join(TIMEOUT)
        status, answer = rest(server, "/v1/models/affine")
    assert errors == []
    for values in received:
        assert values == sorted(values) and {1, 2, 3, 4} == set(values)
    assert status == 200
    assert [(s["version"], s["state"]) for s in answer["model_version_status"]][0] == (
        "4",
        "AVAILABLE",
    )


def test_a_damaged_saved_model_is_named(tmp_path):
    folder = tmp_path / "affine"
    write_affine(folder, 1)
    shutil.copytree(folder / "1", folder / "2")
    (folder / "2" / "saved_model.pb").write_bytes(b"\xff\xff")
    with serving({"affine": folder}) as server:
        status, answer = rest(server, "/v1/models/affine/versions/2")
        assert status == 200
        (state,) = answer["model_version_status"]
        assert (state["state"], state["status"]["error_code"]) == ("END", "UNKNOWN")
        assert "received a damaged one" in state["status"]["error_message"]
        assert rest(server, "/v1/models/affine:predict", {"instances": X.tolist()})[0] == 200
        shutil.rmtree(folder / "2" / "variables")
        shutil.copy(folder / "1" / "saved_model.pb", folder / "2")
        until(
            lambda: (
                "variables"
                in rest(server, "/v1/models/affine/versions/2")[1]["model_version_status"][0][
                    "status"
                ]["error_message"]
            )
        )


def test_a_saved_model_without_signatures(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(NoModelError, match="expected a SavedModel with signatures"):
        with serving({"m": tmp_path}):
            pass
