"""Runs a script as a worker that suffers faults, and reports what the script has in the end.

    python under_faults.py script.py

The script knows nothing of it. The environment variable SCRIPT_COURSE has a `Course` as JSON; the
worker's number is in TF_CONFIG. A place of faults is a call of Keras that begins or ends, and its
number counts from 1 in each process. A worker writes the places that it has reached to
`places-WORKER-LIFE`, and its state to `state-WORKER-LIFE`, where LIFE counts the processes of a
worker from 0.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import pickle
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}


class Places:
    """The places that this process reaches, and the faults that it suffers there.

    Args:
      course: see `script_course.py`.
      worker: its number.
    """

    def __init__(self, course: dict[str, Any], worker: int) -> None:
        self.folder = Path(course["folder"])
        self.worker = worker
        lives = self.folder.glob(f"places-{worker}-*")
        self.life = len(list(lives))
        self._pause = course["pause"]
        self._faults = [
            fault
            for fault in course["faults"]
            if fault["worker"] == worker and fault["life"] == self.life and fault["place"]
        ]
        self._counts: Counter[str] = Counter()
        # Line by line: a killed process has written what it reached.
        path = self.folder / f"places-{worker}-{self.life}"
        self._file = open(path, "w", buffering=1)
        self._file.write(f"pid {os.getpid()} {time.time():.3f}\n")

    def reach(self, place: str) -> None:
        """Notes a place, and suffers the fault that is to come there."""
        self._counts[place] += 1
        count = self._counts[place]
        self._file.write(f"{place} {count} {time.time():.3f}\n")
        for fault in self._faults:
            if fault["place"] == place and fault["count"] == count:
                self._file.write(f"FAULT {fault['kind']} {time.time():.3f}\n")
                os.kill(os.getpid(), SIGNALS[fault["kind"]])
        if place == "step":
            # So slow that the faults of a course come one after the other.
            time.sleep(self._pause)

    def around(self, owner: Any, name: str, before: str = "", after: str = "") -> None:
        """Makes the beginning and the end of a function places."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def with_places(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.reach(before)
            result = original(*args, **kwargs)
            if after:
                self.reach(after)
            return result

        setattr(owner, name, with_places)

    def around_keras(self) -> None:
        """Makes places of the functions of Keras, as they are when a strategy has been made."""
        import h5py
        import keras
        from keras.src.callbacks.callback_list import CallbackList

        from tfdist.internals.keras_3_trainer import Trainer

        self.around(keras.Model, "fit", "fit", "after fit")
        self.around(keras.Model, "predict", "predict", "after predict")
        self.around(keras.Model, "evaluate", "evaluate", "after evaluate")
        self.around(Trainer, "compute_loss", "trace")
        self.around(CallbackList, "on_train_batch_end", after="step")
        self.around(CallbackList, "on_predict_batch_end", after="step of predict")
        self.around(CallbackList, "on_test_batch_end", after="step of evaluate")
        self.around(CallbackList, "on_epoch_end", "epoch end", "after epoch")
        self.around(CallbackList, "on_train_end", "train end", "after train end")
        self.around(keras.Model, "save", "save", "after save")
        self.around(keras.Model, "save_weights", "save", "after save")
        self.around(h5py.File, "close", "file")
        replace = os.replace

        def replace_with_places(source: Any, target: Any, **kwargs: Any) -> None:
            self.reach("rename")
            replace(source, target, **kwargs)
            self.reach("after rename")

        os.replace = replace_with_places

    def report(self, state: dict[str, Any]) -> None:
        """Writes the state of the script's end in one step."""
        path = self.folder / f"state-{self.worker}-{self.life}"
        path.with_suffix(".part").write_bytes(pickle.dumps(state))
        path.with_suffix(".part").rename(path)


class Decisions:
    """Standard output, of which the decisions are kept."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._text = ""

    def write(self, text: str) -> int:
        """Writes to standard output."""
        self._text += text
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def lines(self) -> list[str]:
        """The decisions that were printed."""
        return [line for line in self._text.splitlines() if line.startswith("decision: ")]


def plain(value: Any) -> Any:
    """The form in which a value of the script is compared; None if it is not compared."""
    import keras
    import numpy as np

    if isinstance(value, keras.Model):
        state = {"weights": [np.asarray(weight) for weight in value.get_weights()]}
        optimizer = getattr(value, "optimizer", None)
        if optimizer is not None:
            state["optimizer"] = [np.asarray(variable) for variable in optimizer.variables]
        return state
    if isinstance(value, keras.callbacks.History):
        return {"history": plain(value.history), "epoch": list(value.epoch)}
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, (bool, int, float, str, np.ndarray, np.generic)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(found) for key, found in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(found) for found in value]
    return None


def state_of(variables: dict[str, Any], decisions: list[str]) -> dict[str, Any]:
    """The models, histories, arrays, numbers and decisions that a script has in the end."""
    import random

    import numpy as np

    state = {
        name: found
        for name, value in variables.items()
        if not name.startswith("_") and name != "OUTPUT" and (found := plain(value)) is not None
    }
    state["random numbers of Python"] = repr(random.getstate())
    state["random numbers of NumPy"] = repr(np.random.get_state())
    return {"variables": state, "decisions": decisions}


def main() -> None:
    course = json.loads(os.environ["SCRIPT_COURSE"])
    worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    places = Places(course, worker)

    import tfdist

    if course["is_quick"] and "TFDIST_ELASTIC" in os.environ:
        from support.elastic.elastic_training import give_up_early
        from tfdist.elastic import membership

        give_up_early(membership)
    begin = tfdist.MultiWorkerMirroredStrategy.__init__

    @functools.wraps(begin)
    def begin_with_places(*args: Any, **kwargs: Any) -> None:
        begin(*args, **kwargs)
        if not getattr(places, "are_made", False):
            places.are_made = True  # type: ignore[attr-defined]
            places.around_keras()

    tfdist.MultiWorkerMirroredStrategy.__init__ = begin_with_places  # type: ignore[method-assign]

    decisions = Decisions(sys.stdout)
    sys.stdout = decisions  # type: ignore[assignment]
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    variables = runpy.run_path(script, run_name="__main__")
    places.reach("end")
    places.report(state_of(variables, decisions.lines))


if __name__ == "__main__":
    main()
