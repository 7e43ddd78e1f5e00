"""Predictions of models whose tables are on servers of a snapshot."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist
from support.served_tables import Training, addresses, serving, write_model
from tfdist.cli.main import main
from tfdist.errors import ClusterConfigError, PredictionError

IDS = 60


@pytest.fixture
def training(tmp_path):
    """Servers' snapshots with a row for each id, and a model that looks rows up."""
    made = Training(tmp_path / "snapshots")
    made.set({id_: id_ / 2 for id_ in range(IDS)})
    made.save()
    write_model(tmp_path / "users")
    return made


def predict(folder: Path, output: str = "out", **options):
    data = tfdist.data.from_ranges(IDS, task_size=10, name="predict")
    model = options.pop("model", folder / "users")
    return tfdist.predict(
        model, data, folder / output, batch_size=4, format="jsonl", verbose=0, **options
    )


def first_numbers(folder: Path) -> list[float]:
    rows = []
    for part in sorted(folder.glob("part-*")):
        rows += [json.loads(line) for line in part.read_text().splitlines()]
    return [row["output_0"][0] for row in rows]


def test_a_server_may_die(training, tmp_path):
    group = addresses(2)
    with contextlib.ExitStack() as first, serving(tmp_path / "snapshots", group, 1, replicas=2):
        first.enter_context(serving(tmp_path / "snapshots", group, 0, replicas=2))

        def leave(id_: tf.Tensor) -> tf.Tensor:
            if int(id_) == IDS // 2:
                first.close()
            return id_

        def ask(id_: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.py_function(leave, [id_], tf.int64), [])

        assert predict(tmp_path, tables=",".join(group), map=ask).rows == IDS
    assert first_numbers(tmp_path / "out") == [id_ / 2 for id_ in range(IDS)]


def test_another_snapshot_is_another_model(training, tmp_path):
    group = addresses(1)
    with serving(tmp_path / "snapshots", group, 0):
        assert predict(tmp_path, tables=group).rows == IDS
    training.set({0: 7.0})
    training.save()
    with serving(tmp_path / "snapshots", group, 0):
        with pytest.raises(PredictionError, match="was begun with another value of the model"):
            predict(tmp_path, tables=group)
        predict(tmp_path, "other", tables=group)
    assert first_numbers(tmp_path / "other")[0] == 7.0


@pytest.mark.long(covered_by="single/serving/test_model_server_of_tables.py")
def test_servers_that_leave_reject_no_record(training, tmp_path):
    group = addresses(1)
    with contextlib.ExitStack() as only:
        only.enter_context(serving(tmp_path / "snapshots", group, 0))

        def leave(id_: tf.Tensor) -> tf.Tensor:
            if int(id_) == IDS // 2:
                only.close()
            return id_

        def ask(id_: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.py_function(leave, [id_], tf.int64), [])

        with pytest.raises((tf.errors.UnavailableError, tf.errors.DeadlineExceededError)):
            predict(tmp_path, tables=group, map=ask, errors="park")
    assert not list((tmp_path / "out").glob("_rejected/*"))


def test_tables_that_do_not_fit(training, tmp_path, capsys):
    with pytest.raises(PredictionError, match="expected their addresses in tables"):
        predict(tmp_path)
    module = tf.Module()
    module.serve = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(module, str(tmp_path / "plain"), signatures=module.serve)
    with pytest.raises(PredictionError, match="plain, which looks nothing up at servers"):
        predict(tmp_path, model=tmp_path / "plain", tables="127.0.0.1:1")
    with pytest.raises(PredictionError, match="the folder of a SavedModel whose tables"):
        predict(tmp_path, model=lambda x: x, tables="127.0.0.1:1")
    with pytest.raises(ClusterConfigError, match="tables: expected \"host:port\", received 'here'"):
        predict(tmp_path, tables="here")
    group = addresses(1)
    write_model(tmp_path / "items", table="items")
    with (
        serving(tmp_path / "snapshots", group, 0),
        pytest.raises(ClusterConfigError, match="table 'items': expected rows of 4 numbers"),
    ):
        predict(tmp_path, model=tmp_path / "items", tables=group)
    options = ["--model", "users", "--input", "in", "--output", "out", "--tables", "here"]
    with pytest.raises(SystemExit):
        main(["predict", *options])
    assert "--tables: expected \"host:port\", received 'here'" in capsys.readouterr().err


def test_the_command_has_the_option(training, tmp_path, capsys):
    with tf.io.TFRecordWriter(str(tmp_path / "in")) as file:
        for id_ in range(IDS):
            file.write(str(id_).encode())
    (tmp_path / "ids.py").write_text(
        "import tensorflow as tf\n\ndef parse(record):\n"
        "    return tf.strings.to_number(record, tf.int64)\n"
    )
    group = addresses(1)
    with serving(tmp_path / "snapshots", group, 0):
        names = {"model": "users", "input": "in", "output": "out"}
        options = [f"--{name}={tmp_path / value}" for name, value in names.items()]
        options += [f"--map={tmp_path / 'ids.py'}:parse", "--format=jsonl", f"--tables={group[0]}"]
        assert main(["predict", *options]) == 0
    assert first_numbers(tmp_path / "out") == [id_ / 2 for id_ in range(IDS)]
