"""Compares a script's state in the end, and its files, with one process's."""

from __future__ import annotations

import csv
import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from support.script_faults.script_course import Found

# The rounding of sums in float64, after a few hundred steps of small models.
TOLERANCE = 1e-9


def differences(alone: Found, found: Found) -> list[str]:
    """Says which promises a run has broken; an empty list if none."""
    broken = list(found.broken)
    expected = pickle.loads((alone.folder / "state-0-0").read_bytes())
    ended = 0
    for worker, paths in found.lives().items():
        path = found.folder / f"state-{worker}-{len(paths) - 1}"
        if not path.exists():
            if worker not in found.excused:
                broken.append(f"died: worker {worker} has not come to the end of the script")
            continue
        ended += 1
        received = pickle.loads(path.read_bytes())
        who = f"worker {worker}" + (f" (life {len(paths) - 1})" if len(paths) > 1 else "")
        if expected["decisions"] != received["decisions"]:
            broken.append(f"wrong decisions: {who}: " + _first(expected, received))
        of_values = list(_compare("", expected["variables"], received["variables"]))
        if of_values:
            more = f" and {len(of_values) - 3} more" if len(of_values) > 3 else ""
            broken.append(f"wrong state: {who}: {'; '.join(of_values[:3])}{more}")
    if not ended:
        broken.append("died: no worker has come to the end of the script")
    if ended:
        files = list(
            _compare_files(alone.folder / "output", found.folder / "output", found.may_begin_again)
        )
        broken += [f"wrong files: {text}" for text in files]
    return broken


def _first(expected: dict[str, Any], received: dict[str, Any]) -> str:
    for line, other in zip(expected["decisions"], received["decisions"], strict=False):
        if line != other:
            return f"expected {line!r}, received {other!r}"
    return f"expected {len(expected['decisions'])}, received {len(received['decisions'])}"


def _compare(name: str, expected: Any, received: Any) -> Iterator[str]:
    """Yields how two values differ, with the names of the differences."""
    if isinstance(expected, dict) and isinstance(received, dict):
        for key in dict.fromkeys([*expected, *received]):
            if key not in expected or key not in received:
                yield f"{name}.{key} is {'extra' if key in received else 'missing'}"
            else:
                yield from _compare(f"{name}.{key}" if name else key, expected[key], received[key])
    elif isinstance(expected, list) and isinstance(received, list):
        if len(expected) != len(received):
            yield f"{name}: expected {len(expected)} values, received {len(received)}"
            return
        worst = list(
            found
            for index, (one, other) in enumerate(zip(expected, received, strict=True))
            for found in _compare(f"{name}[{index}]", one, other)
        )
        yield from worst[:1]
    elif isinstance(expected, (float, int, np.ndarray, np.generic)):
        yield from _compare_numbers(name, np.asarray(expected), np.asarray(received))
    elif expected != received:
        yield f"{name}: expected {str(expected)[:60]!r}, received {str(received)[:60]!r}"


def _compare_numbers(name: str, expected: np.ndarray, received: np.ndarray) -> Iterator[str]:
    if received.dtype.kind not in "biuf":
        yield f"{name}: expected {str(expected)[:60]}, received {str(received)[:60]!r}"
    elif expected.shape != received.shape:
        yield f"{name}: expected shape {expected.shape}, received {received.shape}"
    elif expected.size:
        scale = np.maximum(1.0, np.abs(expected.astype("float64")))
        # In float32 Keras keeps learning rates, and some metrics.
        tolerance = 1e-5 if expected.dtype == np.float32 else TOLERANCE
        apart = np.max(np.abs(expected.astype("float64") - received.astype("float64")) / scale)
        if not apart <= tolerance:
            yield f"{name} is {apart:.3g} apart"


def _compare_files(expected: Path, received: Path, begins_again: bool) -> Iterator[str]:
    of_one, of_many = (
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for folder in (expected, received)
    )
    for name in sorted(of_one ^ of_many):
        yield f"{name} is {'missing' if name in of_one else 'extra'}"
    for name in sorted(of_one & of_many):
        one, other = expected / name, received / name
        if one.read_bytes() == other.read_bytes():
            continue
        try:
            if name.endswith(".csv"):
                yield from _compare_tables(name, one.read_text(), other.read_text(), begins_again)
            elif name.endswith((".keras", ".h5")):
                found = list(_compare("", _model(one), _model(other)))
                if found:
                    yield f"{name}: {'; '.join(found[:2])}"
            else:
                yield f"{name} differs"
        except Exception as error:
            yield f"{name} cannot be read: {type(error).__name__}: {str(error)[:100]}"


def _compare_tables(name: str, expected: str, received: str, begins_again: bool) -> Iterator[str]:
    one, other = (list(csv.reader(io.StringIO(text))) for text in (expected, received))
    if begins_again:
        # As in one process that is started again, a log that is appended to has the lines of the
        # job that was lost, and another one only lines after the backup.
        count = min(len(one), len(other))
        one, other = (lines[:1] + lines[len(lines) - count + 1 :] for lines in (one, other))
    if len(one) != len(other):
        yield f"{name}: expected {len(one)} lines, received {len(other)}"
    for number, (line, of_other) in enumerate(zip(one, other, strict=False), 1):
        cells = [_cell(text) for text in line], [_cell(text) for text in of_other]
        found = list(_compare(f"{name}:{number}", *cells))
        if found:
            yield found[0]
            return


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _model(path: Path) -> dict[str, Any]:
    """The arrays of a file of weights or of a model, and the model's description."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            weights = io.BytesIO(archive.read("model.weights.h5"))
            description = json.loads(archive.read("config.json"), object_hook=_without_ids)
        return {"config": json.dumps(description, sort_keys=True), "arrays": _arrays(weights)}
    return {"arrays": _arrays(path)}


def _without_ids(described: dict[str, Any]) -> dict[str, Any]:
    # Addresses in the memory of the process that has written the file.
    return {key: value for key, value in described.items() if key != "shared_object_id"}


def _arrays(file: Any) -> dict[str, np.ndarray]:
    arrays = {}

    def note(name: str, item: Any) -> None:
        # The position in the data is of no meaning for Keras.
        if isinstance(item, h5py.Dataset) and "tfdist" not in name:
            arrays[name] = np.asarray(item)

    with h5py.File(file, "r") as found:
        found.visititems(note)
    return arrays
