"""Rows of Parquet files as data tasks."""

from __future__ import annotations

import numpy as np
import pytest

import tfdist

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ROWS = 25


def table(first):
    numbers = np.arange(first, first + ROWS)
    vectors = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(np.repeat(numbers, 2).astype(np.float32)), 2
    )
    return pyarrow.table(
        {
            "id": numbers,
            "text": [f"row {i}" for i in numbers],
            "even": numbers % 2 == 0,
            "vector": vectors,
        }
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_in_tasks(tmp_path, shuffle):
    for file in range(2):
        path = tmp_path / f"in-{file}.parquet"
        parquet.write_table(table(100 * file), path, row_group_size=10)
    data = tfdist.data.from_files(
        str(tmp_path / "in-*"), "parquet", task_size=4, shuffle=shuffle, seed=3
    )
    found = list(tfdist.data.tracked(data).as_numpy_iterator())
    ids = [int(row["id"]) for row in found]
    expected = [100 * file + i for file in range(2) for i in range(ROWS)]
    assert sorted(ids) == expected and (ids == expected) != shuffle
    for row in found:
        i = int(row["id"])
        assert row["text"] == b"row %d" % i and row["even"] == (i % 2 == 0)
        assert row["vector"].tolist() == [i, i]


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(ValueError, match="a.parquet: expected a Parquet file"):
        tfdist.data.from_files(str(tmp_path / "a.parquet"), "parquet")
    parquet.write_table(pyarrow.table({"x": [[1], [1, 2]]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="received 'x' of list"):
        tfdist.data.from_files(str(tmp_path / "b.parquet"), "parquet")
    parquet.write_table(pyarrow.table({"x": [1, None]}), tmp_path / "c.parquet")
    data = tfdist.data.from_files(str(tmp_path / "c.parquet"), "parquet", name="c")
    with pytest.raises(Exception, match="expected a value in each row of 'x'"):
        list(tfdist.data.tracked(data))


def test_prediction_of_row_groups(tmp_path):
    parquet.write_table(table(0), tmp_path / "in.parquet", row_group_size=10)
    data = tfdist.data.from_files(str(tmp_path / "in.parquet"), "parquet", task_size=10)
    model = lambda batch: batch["vector"] + 1  # noqa: E731
    result = tfdist.predict(
        model, data, tmp_path / "out", keep=["id", "text"], batch_size=4, verbose=0
    )
    assert result.rows == ROWS and len(result.parts) == 3
    paths = [tmp_path / "out" / part for part in result.parts]
    rows = [row for path in paths for row in parquet.read_table(path).to_pylist()]
    assert rows == [
        {"id": i, "text": b"row %d" % i, "prediction": [i + 1, i + 1]} for i in range(ROWS)
    ]
