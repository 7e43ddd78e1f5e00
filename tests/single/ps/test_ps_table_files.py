"""Export and import of tables, also from files of other programs."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

from support.table_job import ADAGRAD, Worker, rows_of, start_server
from tfdist.errors import CheckpointError
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ps.export import files

FORMATS = pytest.mark.parametrize("ending", ["npz", "parquet"])


def make(servers, width=3, **options):
    stores = [start_server(i) for i in range(servers)]
    worker = Worker(stores)
    table = worker.table("t", width, **options)
    return stores, worker, table, TableConfig(width=width, **options)


def filled(servers=2, **options):
    stores, worker, table, config = make(servers, **options)
    random = np.random.default_rng(1)
    for _ in range(3):
        ids = random.integers(-(2**62), 2**62, 1000)
        worker.lookup(table, ids)
        worker.push(table, ids, random.normal(size=[1000, config.width]))
    return stores, worker, table, config


def all_rows(stores):
    return {row: bits for store in stores for row, bits in rows_of(store)["t"].items()}


@FORMATS
@pytest.mark.parametrize("options", [ADAGRAD, {}], ids=["adagrad", "sgd"])
def test_there_and_back(tmp_path, ending, options):
    stores, worker, table, config = filled(**options)
    path = f"{tmp_path}/t.{ending}"
    assert files.export_table(worker.client, table.table, config, path, slots=True) == 3000
    assert [entry.name for entry in tmp_path.iterdir()] == [f"t.{ending}"]
    copies, other, copied, _ = make(3, **options)
    assert files.import_table(other.client, copied.table, config, path) == 3000
    assert all_rows(copies) == all_rows(stores)


@FORMATS
def test_values_only(tmp_path, ending):
    stores, worker, table, config = filled(**ADAGRAD)
    path = f"{tmp_path}/t.{ending}"
    files.export_table(worker.client, table.table, config, path)
    if ending == "npz":
        with np.load(path) as archive:
            assert sorted(archive) == ["ids", "values"]  # without slots nothing names them
            ids, values = archive["ids"], archive["values"]
    else:
        read = pyarrow.parquet.read_table(path)
        assert read.schema.names == ["ids", "values"]
        ids, values = read["ids"].to_numpy(), np.array(read["values"].to_pylist(), "f4")
    np.testing.assert_array_equal(worker.lookup(table, ids, training=False), values)
    copies, other, copied, _ = make(1, **ADAGRAD)
    other.lookup(copied, [5])
    files.import_table(other.client, copied.table, config, path)
    np.testing.assert_array_equal(other.lookup(copied, ids, training=False), values)
    rows = all_rows(copies)
    assert rows.keys() == {*ids.tolist(), 5}
    slots = np.frombuffer(rows[int(ids[0])][8 + 12 :], np.float32)
    np.testing.assert_array_equal(slots, np.full([3], 0.1, np.float32))
    del stores


@FORMATS
def test_an_empty_table(tmp_path, ending):
    _, worker, table, config = make(2)
    path = f"{tmp_path}/t.{ending}"
    assert files.export_table(worker.client, table.table, config, path) == 0
    assert files.import_table(worker.client, table.table, config, path) == 0


def test_what_somebody_else_has_written(tmp_path):
    _, worker, table, config = make(2)
    ids = np.array([3, -1, 2**40])
    values = np.arange(9, dtype=np.float64).reshape(3, 3)
    np.savez_compressed(f"{tmp_path}/a.npz", ids=ids.astype(np.int32), values=values)
    assert files.import_table(worker.client, table.table, config, f"{tmp_path}/a.npz") == 3
    lists = pyarrow.array((values + 1).tolist(), pyarrow.list_(pyarrow.float64()))
    pyarrow.parquet.write_table(
        pyarrow.table({"ids": ids, "values": lists}), f"{tmp_path}/b.parquet"
    )
    files.import_table(worker.client, table.table, config, f"{tmp_path}/b.parquet")
    assert worker.lookup(table, ids, training=False).tolist() == (values + 1).tolist()


def test_an_imported_row_is_in_the_log(tmp_path):
    from tfdist.ps.checkpoint.checkpoint import Checkpoints

    stores = [start_server()]
    Checkpoints(stores[0], str(tmp_path), 0, 1).restore()
    worker = Worker(stores)
    table = worker.table("t", 1)
    np.savez(f"{tmp_path}/a.npz", ids=np.array([7]), values=np.array([[2.5]], np.float32))
    config = TableConfig(width=1)
    files.import_table(worker.client, table.table, config, f"{tmp_path}/a.npz")
    copy = start_server()
    Checkpoints(copy, str(tmp_path), 0, 1).restore()
    assert rows_of(copy) == rows_of(stores[0])


@FORMATS
def test_a_path_that_only_tensorflow_knows(ending):
    stores, worker, table, config = filled(**ADAGRAD)
    path = f"ram://exported.{ending}"
    files.export_table(worker.client, table.table, config, path, slots=True)
    copies, other, copied, _ = make(1, **ADAGRAD)
    files.import_table(other.client, copied.table, config, path)
    assert all_rows(copies) == all_rows(stores)


def test_files_that_do_not_fit(tmp_path):
    _, worker, table, config = make(1, **ADAGRAD)

    def refuse(message, **arrays):
        path = f"{tmp_path}/a.npz"
        np.savez(path, **arrays)
        with pytest.raises(CheckpointError, match=message):
            files.import_table(worker.client, table.table, config, path)

    ids, values = np.arange(4), np.zeros([4, 3], np.float32)
    refuse("expected values, received ids", ids=ids)
    refuse("expected ids, values, received none of it", other=ids)
    refuse(
        r"expected rows of 3 numbers, received values of shape \[4, 2\]",
        ids=ids,
        values=values[:, :2],
    )
    refuse("expected columns of one length", ids=ids[:3], values=values)
    refuse("ids: expected int64 by rows, received float32", ids=values[:, 0], values=values)
    refuse("expected used, counts", ids=ids, values=values, slots=values)
    refuse(
        r"expected the slots accumulator \(3\), .* received 2 numbers without names; .*slots=False",
        ids=ids,
        values=values,
        slots=values[:, :2],
        used=ids.astype(np.uint32),
        counts=ids.astype(np.uint32),
    )


@FORMATS
def test_slots_of_another_optimizer(tmp_path, ending):
    kinds = OptimizerKind
    others = {
        # As many numbers, and of the same length.
        "change": OptimizerConfig(kind=kinds.SGD, momentum=0.5),
        "momentum": OptimizerConfig(kind=kinds.LION),
        "accumulator (3), linear": OptimizerConfig(kind=kinds.FTRL, learning_rate_power=-0.5),
    }
    stores, worker, table, config = filled(1, **ADAGRAD)
    path = f"{tmp_path}/t.{ending}"
    files.export_table(worker.client, table.table, config, path, slots=True)
    for names, optimizer in others.items():
        _, other, copied, config = make(1, optimizer=optimizer)
        message = (
            f"embedding table 'new': expected the slots {names} (3), as its optimizer keeps them, "
            "received accumulator (3); import_table(path, slots=False) takes the values alone"
        )
        with pytest.raises(CheckpointError, match=re.escape(message)):
            files.import_table(other.client, copied.table, config, path, name="new")
        assert other.client.tables.size(copied) == 0
        count = files.import_table(other.client, copied.table, config, path, slots=False)
        assert count == other.client.tables.size(copied) == 3000
        ids = list(rows_of(stores[0])["t"])
        np.testing.assert_array_equal(
            other.lookup(copied, ids, training=False), worker.lookup(table, ids, training=False)
        )


def test_damaged_files(tmp_path):
    _, worker, table, config = filled(1)
    for ending in ("npz", "parquet"):
        path = tmp_path / f"t.{ending}"
        files.export_table(worker.client, table.table, config, str(path))
        whole = path.read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"x" * 1000):
            path.write_bytes(content)
            with pytest.raises(CheckpointError, match="damaged"):
                files.import_table(worker.client, table.table, config, str(path))
    path = tmp_path / "t.npz"
    files.export_table(worker.client, table.table, config, str(path))
    altered = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        altered[archive.getinfo("values.npy").header_offset + 5000] ^= 1
    path.write_bytes(altered)
    with pytest.raises(CheckpointError, match="damaged"):
        files.import_table(worker.client, table.table, config, str(path))


def test_bad_arguments(tmp_path):
    _, worker, table, config = make(1)
    for call in (files.export_table, files.import_table):
        with pytest.raises(ValueError, match=r'ends in "\.npz" or "\.parquet", received'):
            call(worker.client, table.table, config, f"{tmp_path}/t.csv")
    with pytest.raises(tf.errors.InvalidArgumentError, match="there is no table 9"):
        files.export_table(worker.client, 9, config, f"{tmp_path}/t.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.long(covered_by="test_there_and_back")
def test_without_pyarrow(tmp_path):
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from tfdist.ps.export import parquet\n"
        "try:\n    parquet._pyarrow()\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50
    )
    assert "need pyarrow: pip install pyarrow" in done.stdout
