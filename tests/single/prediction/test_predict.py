"""`tfdist.predict` in one process: formats, order, bad records, resuming, and bad input."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.cli.main import main
from tfdist.errors import PredictionError
from tfdist.job import process
from tfdist.prediction.input_files import InputFiles, NotedTimes

RECORDS = 95


def linear(batch):
    """A model: twice the feature, and one more."""
    return 2.0 * batch["x"] + 1.0


def arrays(records=RECORDS, name="predict", task_size=20):
    x = np.arange(records, dtype=np.float32)
    return tfdist.data.from_arrays(
        {"id": np.arange(records), "x": x}, task_size=task_size, name=name
    )


def predict(tmp_path, model=linear, data=None, output="out", **options):
    options = {"batch_size": 8, "format": "jsonl", "verbose": 0, "keep": ["id"], **options}
    return tfdist.predict(model, arrays() if data is None else data, tmp_path / output, **options)


def rows_of(folder):
    return [
        json.loads(line)
        for path in sorted(folder.glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def contents(folder):
    """The bytes of all visible files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "_job" not in path.parts
    }


def test_each_row_once_and_in_order(tmp_path):
    result = predict(tmp_path)
    assert rows_of(tmp_path / "out") == [
        {"id": i, "prediction": 2.0 * i + 1.0} for i in range(RECORDS)
    ]
    assert result.rows == RECORDS and result.rejected == 0
    assert result.parts == [f"part-{i:06d}-of-000005.jsonl" for i in range(5)]
    assert (tmp_path / "out/_SUCCESS").exists()
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    last = manifest["parts"][-1]
    assert last["input"] == {"file": "", "first": 80, "end": 95} and last["rows"] == 15
    content = (tmp_path / "out" / last["part"]).read_bytes()
    assert last["sha256"] == hashlib.sha256(content).hexdigest()
    assert last["bytes"] == len(content)
    for room in ("claims", "staged", "workers"):
        assert os.listdir(tmp_path / "out/_job" / room) == []


def test_formats_hold_the_same_rows_and_bytes(tmp_path):
    def read(form, folder):
        paths = sorted(folder.glob(f"part-*.{form}"))
        if form == "parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            tables = [parquet.read_table(path).to_pydict() for path in paths]
            return {name: [x for t in tables for x in t[name]] for name in tables[0]}
        if form == "npz":
            tables = [dict(np.load(path)) for path in paths]
            return {name: np.concatenate([t[name] for t in tables]).tolist() for name in tables[0]}
        rows = {"id": [], "text": [], "y": []}
        for record in tf.data.TFRecordDataset([str(path) for path in paths]):
            features = tf.train.Example.FromString(record.numpy()).features.feature
            rows["id"] += features["id"].int64_list.value
            rows["text"] += features["text"].bytes_list.value
            rows["y"].append(list(features["y"].float_list.value))
        return rows

    x = np.arange(50, dtype=np.float32)
    texts = np.array([b"row %d" % i for i in range(50)])
    for form in ("parquet", "npz", "tfrecord"):
        found = []
        for output in (f"{form} 1", f"{form} 2"):
            data = tfdist.data.from_arrays(
                {"id": np.arange(50), "text": texts, "x": x}, task_size=20, name="predict"
            )
            model = lambda batch: {"y": tf.stack([batch["x"], -batch["x"]], axis=1)}  # noqa: E731
            predict(tmp_path, model, data, output, format=form, keep=["id", "text"])
            found.append(contents(tmp_path / output))
        assert read(form, tmp_path / output) == {
            "id": list(range(50)),
            "text": [b"row %d" % i for i in range(50)],
            "y": [[float(i), -float(i)] for i in range(50)],
        }
        parts = [{k: v for k, v in one.items() if k.startswith("part")} for one in found]
        assert parts[0] == parts[1]


def test_formats_of_rows_of_different_lengths(tmp_path):
    # Batches of rows that are all empty, of one length, and of different lengths.
    lengths = np.array([0, 0, 2, 2, 1, 3])
    rows = [[0.5] * n for n in lengths]

    def model(batch):
        return tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(batch)], 0.5), batch)

    def call(form):
        data = tfdist.data.from_arrays(lengths, task_size=6, name="lengths")
        predict(tmp_path, model, data, form, format=form, keep=(), batch_size=2)
        (path,) = (tmp_path / form).glob("part-*")
        return path

    found = [json.loads(line)["prediction"] for line in call("jsonl").read_text().splitlines()]
    assert found == rows
    found = [
        list(tf.train.Example.FromString(r.numpy()).features.feature["prediction"].float_list.value)
        for r in tf.data.TFRecordDataset(str(call("tfrecord")))
    ]
    assert found == rows
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(call("parquet"))
    assert table["prediction"].to_pylist() == rows
    assert str(table.schema.field("prediction").type.value_type) == "float"


@pytest.mark.parametrize(
    ("form", "model", "text"),
    [
        ("npz", lambda b: {"a": b} if b[0] else {"a": b, "b": b}, "one, a: .*, b: .*received a: "),
        ("npz", lambda b: b.numpy().astype(float if b[0] else int), "prediction: int64, received"),
        ("tfrecord", lambda b: tf.cast(b, tf.complex64), "received complex64 in column"),
        ("jsonl", lambda b: tf.cast(b, tf.complex64), "received complex numbers"),
        ("parquet", lambda b: tf.cast(b, tf.complex64), r"format .parquet: expected.*complex64: "),
        ("parquet", lambda b: b[:, None][:, :0], r"format .parquet: expected.*float32: "),
        ("jsonl", lambda b: {}, "expected at least one output"),
    ],
)
def test_columns_that_cannot_be_written_are_named(tmp_path, form, model, text):
    data = tfdist.data.from_arrays(np.arange(4, dtype=np.float32), task_size=4, name="columns")
    with pytest.raises(PredictionError, match=text):
        predict(tmp_path, model, data, format=form, keep=(), batch_size=2)
    assert not list((tmp_path / "out").glob("part-*"))


def test_truth_values_in_tfrecords(tmp_path):
    data = tfdist.data.from_arrays(np.arange(3), task_size=4, name="truth")
    predict(tmp_path, lambda batch: batch > 1, data, format="tfrecord", keep=())
    (path,) = (tmp_path / "out").glob("part-*")
    found = [
        tf.train.Example.FromString(r.numpy()).features.feature["prediction"].int64_list.value[0]
        for r in tf.data.TFRecordDataset(str(path))
    ]
    assert found == [0, 0, 1]


def test_a_format_of_ones_own(tmp_path):
    class Csv:
        suffix = ".csv"

        def open(self, path):
            return CsvPart(path)

    class CsvPart:
        def __init__(self, path):
            self.file = open(path, "x")

        def write(self, columns):
            self.file.writelines(
                f"{i},{y}\n" for i, y in zip(columns["id"], columns["prediction"], strict=True)
            )

        def close(self):
            self.file.close()

    predict(tmp_path, format=Csv())
    assert (tmp_path / "out/part-000001-of-000005.csv").read_text().startswith("20,41.0\n21,43.0\n")


def test_files_are_read_in_order(tmp_path):
    for file in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"in-{file}.tfrecord")) as writer:
            for i in range(7):
                writer.write(str(100 * file + i).encode())
    data = tfdist.data.from_files(str(tmp_path / "in-*"), task_size=4, name="predict")
    parse = lambda record: {"id": tf.strings.to_number(record, tf.int64)}  # noqa: E731
    predict(tmp_path, lambda batch: batch["id"] + 1, data, map=parse, batch_size=3)
    ids = [100 * file + i for file in range(3) for i in range(7)]
    assert [row["id"] for row in rows_of(tmp_path / "out")] == ids
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert manifest["parts"][3]["input"] == {"file": "in-1.tfrecord", "first": 4, "end": 7}


def test_bad_records_are_parked(tmp_path):
    def parse(row):
        with tf.control_dependencies([tf.debugging.assert_none_equal(row["x"], 13.0)]):
            return {"id": row["id"], "x": tf.identity(row["x"])}

    def model(batch):
        tf.debugging.assert_none_equal(batch["x"], 41.0, message="no answer")
        return linear(batch)

    result = predict(tmp_path, model, map=parse, errors="park")
    assert [row["id"] for row in rows_of(tmp_path / "out")] == [
        i for i in range(RECORDS) if i not in (13, 41)
    ]
    assert result.rejected == 2 and result.rows == RECORDS - 2
    rejected = rows_of_rejected(tmp_path / "out")
    assert [one["record"] for one in rejected] == [13, 41]
    assert "no answer" in rejected[1]["message"]
    with pytest.raises(PredictionError, match=r"record (13|41): .*errors='park'"):
        predict(tmp_path, model, map=parse, output="other")
    assert not (tmp_path / "other/_SUCCESS").exists()


def test_a_damaged_record_is_parked(tmp_path):
    path = tmp_path / "in.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(30):
            writer.write(b"%06d" % i)
    content = bytearray(path.read_bytes())
    content[13 * len(content) // 30 + 14] ^= 1  # in the data of record 13
    path.write_bytes(content)
    data = tfdist.data.from_files(str(path), task_size=20, name="predict")
    parse = lambda record: {"id": tf.strings.to_number(record, tf.int64)}  # noqa: E731
    options = {"map": parse, "model": lambda batch: batch["id"] + 1, "data": data}
    result = predict(tmp_path, errors="park", **options)
    assert result.rejected == 1
    assert [row["id"] for row in rows_of(tmp_path / "out")] == [i for i in range(30) if i != 13]
    (bad,) = rows_of_rejected(tmp_path / "out")
    assert (bad["file"], bad["record"]) == ("in.tfrecord", 13) and "corrupted" in bad["message"]
    with pytest.raises(PredictionError, match="record 13 of in.tfrecord: .*corrupted record"):
        predict(tmp_path, output="other", **options)


def rows_of_rejected(folder):
    return [
        json.loads(line)
        for path in sorted((folder / "_rejected").glob("*"))
        for line in path.read_text().splitlines()
    ]


def bad_below(limit):
    def parse(row):
        with tf.control_dependencies([tf.debugging.assert_greater_equal(row["x"], float(limit))]):
            return {"id": row["id"], "x": tf.identity(row["x"])}

    return parse


@pytest.mark.long(covered_by="test_bad_records_are_parked")
def test_a_job_whose_records_are_all_rejected_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tfdist.prediction.rejections.MAX_FIRST", 4)

    def call(records, limit, **options):
        data = arrays(records, f"{records} records", task_size=3)
        options = {"errors": "park", "batch_size": 1, **options}
        return predict(tmp_path, data=data, map=bad_below(limit), **options)

    few = "all of the first 4 records were rejected, the last one as record .*: .*errors='park-all'"
    with pytest.raises(PredictionError, match=few):
        call(6, 6, output="all")
    assert not (tmp_path / "all/_SUCCESS").exists()
    assert call(6, 6, output="all", errors="park-all").rejected == 6
    with pytest.raises(PredictionError, match="^all 3 records of the job were rejected"):
        call(3, 3, output="few")
    assert call(3, 3, output="few", errors="park-all").rejected == 3
    # A worker that begins with bad records continues if other parts have rows.
    assert call(9, 6, output="some", errors="park-all").rows == 3
    for part in range(2):
        (tmp_path / f"some/_job/records/{part:06d}.json").unlink()
    (tmp_path / "some/_SUCCESS").unlink()
    assert call(9, 6, output="some").rejected == 6


def test_a_part_without_good_records_has_no_file(tmp_path):
    def parse(row):
        with tf.control_dependencies([tf.debugging.assert_greater_equal(row["x"], 20.0)]):
            return {"id": row["id"], "x": tf.identity(row["x"])}

    result = predict(tmp_path, map=parse, errors="park")
    assert result.rejected == 20 and result.parts[0] == "part-000001-of-000005.jsonl"


def test_a_model_that_always_fails_is_an_error(tmp_path):
    def model(batch):
        raise ValueError("not today")

    with pytest.raises(PredictionError, match="fails with each of records .*not today"):
        predict(tmp_path, model, errors="park")


def test_a_job_continues_where_it_was(tmp_path):
    whole = contents_of_one_run(tmp_path)
    calls, failed = [], []

    def counted(batch):
        calls.extend(batch["id"].numpy().tolist())
        if len(calls) > 30 and not failed:
            failed.append(True)
            raise tf.errors.UnavailableError(None, None, "a server has gone")
        return linear(batch)

    def again(batch):
        return counted(batch)

    with pytest.raises(tf.errors.UnavailableError):
        predict(tmp_path, again)
    done = set(os.listdir(tmp_path / "out/_job/records"))
    assert 1 <= len(done) <= 2
    first = list(calls)
    predict(tmp_path, again)
    parts = {int(name[:-5]) for name in done}
    skipped = {i for part in parts for i in range(20 * part, min(20 * part + 20, RECORDS))}
    assert set(calls[len(first) :]) == set(range(RECORDS)) - skipped
    found = contents(tmp_path / "out")
    del found["_manifest.json"], whole["_manifest.json"]  # of two models
    assert found == whole
    before = len(calls)
    assert predict(tmp_path, again).rows == RECORDS and len(calls) == before


def test_an_interruption_leaves_no_pipeline_behind(tmp_path, capsys):
    """Its threads would wait for Python at the end of the program, for ever."""
    begun = threading.Event()

    def interrupt(x):
        if not begun.is_set():  # the main thread waits for the first batch
            begun.set()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return x

    def parse(row):
        x = tf.numpy_function(interrupt, [row["x"]], tf.float32)
        return {"id": row["id"], "x": tf.ensure_shape(x, [])}

    with pytest.raises(KeyboardInterrupt) as caught:
        predict(tmp_path, map=parse, verbose=1)
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(caught.tb)]
    assert not [name for name in frames if "/tensorflow/" in name]
    out = capsys.readouterr().out
    assert re.search(r"interrupted: \d of 5 parts are committed in .*/out; the same command", out)
    predict(tmp_path, map=parse)
    assert contents(tmp_path / "out").keys() == contents_of_one_run(tmp_path).keys()


def contents_of_one_run(tmp_path):
    predict(tmp_path, output="whole")
    return contents(tmp_path / "whole")


def test_a_vanished_part_is_made_again(tmp_path):
    whole = contents_of_one_run(tmp_path)
    predict(tmp_path)
    (tmp_path / "out/part-000002-of-000005.jsonl").unlink()
    (tmp_path / "out/_SUCCESS").unlink()
    predict(tmp_path)
    assert contents(tmp_path / "out") == whole


def test_files_that_vanish_after_the_end_are_made_again(tmp_path):
    whole = contents_of_one_run(tmp_path)
    predict(tmp_path)
    for name in ("part-000002-of-000005.jsonl", "_manifest.json"):
        (tmp_path / "out" / name).unlink()
        predict(tmp_path)
        assert contents(tmp_path / "out") == whole
    (tmp_path / "out/part-000002-of-000005.jsonl").write_text("other")
    with pytest.raises(PredictionError, match="received 5: it was changed after it was written"):
        predict(tmp_path)


def test_another_model_or_input_is_refused_by_name(tmp_path):
    predict(tmp_path)
    with pytest.raises(PredictionError, match="another value of the model: expected '"):
        predict(tmp_path, lambda batch: batch["x"])
    with pytest.raises(PredictionError, match="output of another input: records: 95, 96"):
        predict(tmp_path, data=arrays(96, "other"))
    with pytest.raises(PredictionError, match="another value of the map"):
        predict(tmp_path, map=lambda row: row)
    with pytest.raises(
        PredictionError, match="another value of batch_size: expected 8, received 9"
    ):
        predict(tmp_path, batch_size=9)
    assert (tmp_path / "out/_SUCCESS").exists()


def test_keras_models(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    predict(tmp_path, model, output="memory", map=lambda row: {**row, "x": row["x"][None]})
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "served", verbose=False)
    for name in ("model.keras", "served"):
        path = str(tmp_path / name)
        predict(tmp_path, path, output=f"of {name}", map=lambda row: {**row, "x": row["x"][None]})
    expected = model.predict(np.arange(RECORDS, dtype=np.float32)[:, None], verbose=0)
    for output, column in (("memory", "prediction"), ("of served", "output_0")):
        rows = rows_of(tmp_path / output)
        np.testing.assert_allclose([row[column] for row in rows], expected, rtol=1e-6)
    assert rows_of(tmp_path / "of model.keras") == rows_of(tmp_path / "memory")
    with pytest.raises(PredictionError, match="input 'keras.*': expected float32, received int64"):
        whole = {"map": lambda row: row["id"][None], "keep": ()}
        predict(tmp_path, str(tmp_path / "served"), output="whole numbers", **whole)
    with open(tmp_path / "served/variables/variables.data-00000-of-00001", "r+b") as file:
        file.truncate(10)
    with pytest.raises(PredictionError, match="served: cannot be loaded: "):
        predict(tmp_path, str(tmp_path / "served"), output="cut off")
    with pytest.raises(PredictionError, match="another value of the model"):
        model.layers[0].bias.assign([1.0, 1.0])
        predict(tmp_path, model, output="memory", map=lambda row: {**row, "x": row["x"][None]})


def test_metrics_of_all_rows(tmp_path):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    generator = np.random.default_rng(3)
    x = generator.normal(size=(RECORDS, 3)).astype("float32")
    y = (generator.random(RECORDS) < 0.4).astype("float32")[:, None]
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
    expected = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    data = tfdist.data.from_arrays((x, y), task_size=20, name="predict")
    metrics = ["mae", keras.metrics.AUC(name="auc")]
    found = predict(tmp_path, model, data, keep=(), metrics=metrics).metrics
    assert found["auc"] == pytest.approx(expected["auc"], rel=1e-6)
    assert found["mean_absolute_error"] == pytest.approx(expected["mae"], rel=1e-6)


def test_a_metric_that_makes_its_variables_late_is_merged_by_a_worker_without_parts(tmp_path):
    x = np.eye(3, dtype=np.float32)[np.arange(30) % 3]

    def call():
        data = tfdist.data.from_arrays((x, x), task_size=20, name="f1")
        metrics = [keras.metrics.F1Score()]
        return predict(tmp_path, lambda batch: batch, data, keep=(), metrics=metrics).metrics

    assert call() == {"f1_score": [1.0, 1.0, 1.0]}
    (tmp_path / "out/_SUCCESS").unlink()
    assert call() == {"f1_score": [1.0, 1.0, 1.0]}


def test_metrics_that_do_not_fit_are_named(tmp_path):
    x = np.ones((30, 3), np.float32)
    cases = [
        (["accuracy"], "expected one of binary_accuracy.*received 'accuracy'"),
        (["ce"], "expected one of binary_crossentropy.*received 'ce'"),
        (["nope"], "expected the name of a Keras metric, received 'nope'"),
        ("mae", "expected a list of metrics or names, received 'mae'"),
        (["mae", "mae"], "'mean_absolute_error' more than once"),
        (["mae"], r"received labels float32\[8\] and outputs float32\[8, 3\]"),
    ]
    data = tfdist.data.from_arrays((x, x[:, 0]), task_size=20, name="unfit")
    for i, (metrics, text) in enumerate(cases):
        with pytest.raises(PredictionError, match=text):
            predict(tmp_path, lambda b: b, data, f"out {i}", keep=(), metrics=metrics)


def test_bad_arguments(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/other.txt").touch()
    cases = [
        ({"output": "full"}, "expected a new or empty folder.*'other.txt'"),
        ({"model": str(tmp_path / "none")}, "saved_model.pb, or a .keras file, found no such path"),
        ({"model": str(tmp_path / "full")}, "saved_model.pb, or a .keras file, found neither"),
        ({"model": 3}, "expected a Keras model"),
        ({"format": "xml"}, "format: expected one of parquet"),
        ({"errors": "ignore"}, "errors: expected 'fail', 'park' or 'park-all'"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number of at least 1, received 2.5"),
        ({"keep": "id"}, "keep: expected a list of names, received 'id'"),
        ({"output": "full/other.txt"}, "other.txt: expected a new or empty folder.*found a file"),
        ({"output": "full/other.txt/out"}, "out: expected a new or empty folder.*found a file"),
        ({"map": lambda row: row["none"]}, "^map: expected a function of one.*KeyError: 'none'$"),
        ({"model": lambda batch: batch["z"]}, r"^record \d+: KeyError: 'z'"),
        ({"keep": ["name"]}, r"names of features, which are \['id', 'x'\], received 'name'"),
        ({"data": tf.data.Dataset.range(3)}, "data: expected the result of tfdist.data.from_files"),
        ({"model": lambda batch: batch["x"][:1]}, "expected 8 rows of output 'prediction'"),
        ({"model": lambda batch: {"id": batch["x"]}}, "outputs of other names than keep"),
    ]
    for i, (options, text) in enumerate(cases):
        with pytest.raises(PredictionError, match=text):
            predict(tmp_path, **{"output": f"out {i}", **options})
    assert (tmp_path / "full/other.txt").exists() and not (tmp_path / "full/_job").exists()
    two = keras.Model(
        inputs := {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), name="b")},
        keras.layers.Dense(1)(keras.layers.concatenate(list(inputs.values()))),
    )
    with pytest.raises(PredictionError, match=r"features of the names \['a', 'b'\].*missing"):
        predict(tmp_path, two, output="signature")


def test_a_file_that_changes_or_vanishes(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{i}\n" for i in range(30)))
    data = tfdist.data.from_files(str(path), "lines", task_size=10, name="predict")
    options = {"map": lambda line: {"id": line}, "model": lambda batch: batch["id"]}
    path.write_text("1\n")
    with pytest.raises(PredictionError, match="expected 80 bytes, received 2: the file has chang"):
        predict(tmp_path, data=data, **options)
    with pytest.raises(ValueError, match="expected files, received the folder"):
        tfdist.data.from_files(str(path.parent), "lines", name="folder")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="in.txt has vanished"):
        predict(tmp_path, data=data, output="vanished", **options)


def test_another_input_of_the_same_names_and_sizes_is_refused(tmp_path):
    def call(folder):
        data = tfdist.data.from_files(f"{tmp_path}/{folder}/*", "lines", task_size=2, name=folder)
        return predict(tmp_path, lambda b: b["id"], data, map=lambda line: {"id": line})

    for folder, line in (("monday", "1\n"), ("tuesday", "2\n"), ("a copy", "1\n")):
        (tmp_path / folder).mkdir()
        for file in range(40):
            (tmp_path / folder / f"{file:02d}.txt").write_text(line)
    assert call("monday").rows == 40
    with pytest.raises(PredictionError, match="another value of the content of the input files"):
        call("tuesday")
    assert call("a copy").rows == 40


class Lines:
    """Two files of lines; one is changed in its middle while the job runs."""

    def __init__(self, tmp_path, change=lambda path: None, at=50):
        self.paths = [tmp_path / f"in-{i}.txt" for i in range(2)]
        for path in self.paths:
            path.write_text("".join(f"{i:099d}\n" for i in range(2000)))
        self.change, self.at = change, at

    def predict(self, tmp_path, **options):
        names = [str(path) for path in self.paths]
        data = tfdist.data.from_files(names, "lines", task_size=400, name="predict")
        options = {"batch_size": 50, "errors": "park", **options}
        return predict(tmp_path, self.model, data, map=self.parse, **options)

    def parse(self, line):
        return {"id": line}

    def model(self, batch):
        if self.at is not None:
            self.at -= 1
            if self.at == 0:
                self.at = None
                self.change(self.paths[1])
        return tf.strings.length(batch["id"])


def overwritten(path):
    """Changes one byte in the middle: the size and both ends stay."""
    with open(path, "r+b") as file:
        file.seek(100_050)
        file.write(b"9")


def replaced(path):
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    overwritten(other)
    other.rename(path)


@pytest.mark.parametrize("change", [overwritten, replaced])
def test_a_file_that_keeps_its_size_is_noticed_in_the_middle_of_a_job(tmp_path, change):
    lines = Lines(tmp_path, change, at=2)
    former = lines.paths[1].read_bytes()
    time = os.stat(lines.paths[1]).st_mtime_ns
    text = r"in-1.txt: expected the file that the job has begun with, last changed at .* received"
    for _ in range(2):  # also in a later start
        with pytest.raises(PredictionError, match=text):
            lines.predict(tmp_path)
    for room in ("claims", "staged", "workers"):
        assert os.listdir(tmp_path / "out/_job" / room) == []
    # A copy has another time, and nothing else.
    lines.paths[1].write_bytes(former)
    with pytest.raises(PredictionError, match=text) as refused:
        lines.predict(tmp_path)
    command = str(refused.value).rpartition("time again: ")[2]
    subprocess.run(shlex.split(command), check=True)
    assert os.stat(lines.paths[1]).st_mtime_ns == time
    assert lines.predict(tmp_path).rows == 4000
    assert [int(row["id"]) for row in rows_of(tmp_path / "out")] == 2 * [*range(2000)]


def test_input_files_of_another_machine_may_be_copies(tmp_path, monkeypatch):
    path = tmp_path / "in.txt"
    path.write_text("1\n")
    noted = InputFiles([str(path)]).noted
    os.utime(path, (0, 0))
    touched = InputFiles([str(path)])
    with pytest.raises(PredictionError, match="changed at 1970-01-01 00:00:00.000000000 UTC"):
        touched.compare(noted)
    elsewhere = dataclasses.replace(noted, machine="another")
    with pytest.raises(PredictionError, match="touch -d"):  # one file on a network file system
        touched.compare(elsewhere)
    time, inode = noted.times[0]
    touched.compare(dataclasses.replace(elsewhere, times=[(time, inode + 1)]))
    touched.compare(dataclasses.replace(noted, folder="/elsewhere"))
    assert NotedTimes.parse(json.loads(json.dumps(dataclasses.asdict(noted)))) == noted


def test_input_without_a_record_is_refused(tmp_path):
    (tmp_path / "in.txt").write_text("a,b\n")
    for _ in range(2):
        data = tfdist.data.from_files(f"{tmp_path}/in.txt", "lines", header=1, name="empty")
        with pytest.raises(PredictionError, match="at least one record, found none in 1 files"):
            predict(tmp_path, data=data)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    whole = contents_of_one_run(tmp_path)
    from tfdist.prediction import writers

    write, calls = writers._Lines.write, []

    def full(self, columns):
        calls.append(None)
        if len(calls) > 7:
            self._file.write('{"id": ')
            raise OSError(28, "No space left on device")
        write(self, columns)

    monkeypatch.setattr(writers._Lines, "write", full)
    with pytest.raises(OSError, match="no space left; the finished parts stay.*/out'"):
        predict(tmp_path)
    for room in ("claims", "staged", "workers"):
        assert os.listdir(tmp_path / "out/_job" / room) == []
    assert len(list((tmp_path / "out").glob("part-*"))) == 2
    monkeypatch.undo()
    predict(tmp_path)
    assert contents(tmp_path / "out") == whole


def test_an_output_folder_that_is_removed_is_named(tmp_path):
    def model(batch):
        if not removed:
            removed.append(shutil.rmtree(tmp_path / "out"))
        return linear(batch)

    removed = []
    with pytest.raises(FileNotFoundError, match="output folder was removed while .*anew: '.*/out'"):
        predict(tmp_path, model)
    assert not (tmp_path / "out").exists()
    assert predict(tmp_path, model).rows == RECORDS


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
def test_a_small_file_system_that_is_full(tmp_path):
    whole = contents_of_one_run(tmp_path)
    (tmp_path / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path / "small")]
    subprocess.run(mount, check=True)
    try:
        with open(tmp_path / "small/ballast", "wb") as file:
            file.write(bytes(24 << 10))
        with pytest.raises(OSError, match="No space left|no space left"):
            predict(tmp_path, output="small/out")
        (tmp_path / "small/ballast").unlink()
        predict(tmp_path, output="small/out")
        assert contents(tmp_path / "small/out") == whole
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True)
        with pytest.raises(OSError, match="Read-only file system: .*/small/other'"):
            predict(tmp_path, output="small/other")
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)


@pytest.mark.parametrize("name", ["model.keras", "served"])
def test_a_model_that_is_replaced_while_a_worker_runs(tmp_path, name):
    def save(bias):
        model = keras.Sequential([keras.Input(()), keras.layers.Lambda(lambda x: x + bias)])
        if name == "served":
            model.export(path, verbose=False)
        else:
            keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(1.0, bias)]).save(path)

    def replace(x):
        if not replaced:
            replaced.append(True)
            save(7.0)
        return x

    def parse(row):
        x = tf.ensure_shape(tf.numpy_function(replace, [row["x"]], tf.float32), [])
        return {**row, "x": x if name == "served" else x[None]}

    path, replaced = str(tmp_path / name), []
    save(0.0)
    predict(tmp_path, path, map=parse)
    rows = rows_of(tmp_path / "out")
    assert len(replaced) == 1 and [row["id"] for row in rows] == [*range(RECORDS)]
    for row in rows:
        assert np.ravel([row[column] for column in row if column != "id"]) == [row["id"]]
    with pytest.raises(PredictionError, match="begun with another value of the model: expected '"):
        predict(tmp_path, path, map=parse)


def test_the_parts_of_a_running_job_are_shown(tmp_path, capsys):
    shown = []

    def model(batch):
        if not shown and len(os.listdir(tmp_path / "out/_job/records")) > 1:
            shown.append(process.current.shown_queues()[0])
            assert main(["tasks", "--output", str(tmp_path / "out")]) == 0
        return linear(batch)

    predict(tmp_path, model, verbose=1)
    assert shown[0]["tasks"] == 5 and shown[0]["done"] >= 2
    assert "in this process" not in shown[0]["pending"][0]["owner"]
    out = capsys.readouterr().out
    assert "queue predict: epoch 1 of 1: " in out and "pending  task " in out
    assert "tfdist predict: 5 of 5 parts, 95 records" in out
    assert process.current.shown_queues() == []
    assert main(["tasks", "--output", str(tmp_path)]) == 1
    assert "expected the output of a prediction" in capsys.readouterr().err
