"""The kept inputs of the fuzz targets in Python: read, or refused with the error of the reader."""

import importlib
import sys
from pathlib import Path

import pytest

_FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
_TARGETS = sorted(path.stem for path in (_FUZZ / "python").glob("*.py"))


@pytest.mark.parametrize("name", _TARGETS)
def test_kept_inputs_of(name, monkeypatch):
    for folder in (_FUZZ, _FUZZ / "python"):
        monkeypatch.syspath_prepend(folder)
    target = importlib.import_module(name)
    kept = sorted((_FUZZ / "corpus" / name).iterdir())
    assert kept
    for content in [b"", *target.seeds(), *(path.read_bytes() for path in kept)]:
        try:
            target.run(content)
        except BaseException as error:
            error.add_note(f"{name}: {content!r}")
            raise
    sys.modules.pop(name)
