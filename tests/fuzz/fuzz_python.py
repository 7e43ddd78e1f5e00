"""Lets libFuzzer choose the inputs of a target in `python/`, by atheris.

fuzz_python.py NAME FOLDER...         mutates the files of the folders; new ones go to the first
fuzz_python.py NAME FILE              runs one input, such as one that was found
fuzz_python.py NAME --seeds=FOLDER    writes the inputs to begin with
fuzz_python.py                        prints the names of all targets
"""

import importlib
import logging
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_SEEDS = "--seeds="


def targets() -> list[str]:
    """The names of the targets."""
    return sorted(path.stem for path in (FOLDER / "python").glob("*.py"))


def main() -> None:
    """Runs the target of the first argument."""
    if len(sys.argv) < 2:
        print("\n".join(targets()))
        return
    sys.path[:0] = [str(FOLDER / "python"), str(FOLDER), str(FOLDER.parent), str(FOLDER.parents[1])]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    name, *rest = sys.argv[1:]
    if len(rest) == 1 and rest[0].startswith(_SEEDS):
        folder = Path(rest[0].removeprefix(_SEEDS))
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(importlib.import_module(name).seeds()):
            (folder / f"seed{number}").write_bytes(seed)
        return
    # Only this command needs it: the corpus is replayed without.
    import atheris

    # Not what they import: TensorFlow's modules would take minutes.
    with atheris.instrument_imports(include=["tfdist"]):
        target = importlib.import_module(name)
    logging.disable(logging.CRITICAL)
    atheris.Setup([name, *rest], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
