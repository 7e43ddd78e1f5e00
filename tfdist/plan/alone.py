"""The child of `tfdist plan --model`: runs a script alone, and times some of its training steps.

    tfdist.plan.alone RESULT STEPS script.py [script's own arguments]

In `fit` of Keras 3 a callback takes the times, and ops in the step tell when gradients are
complete. In a custom loop an op takes the times, where an optimizer of Keras 3 applies gradients.
After WARM_UP and STEPS steps the result is written, as JSON, and the process ends inside the
script. It also ends when its stdin does, which is a pipe of its parent.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import resource
import runpy
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf

from tfdist._types import Gradient, KerasModel, KerasOptimizer, KerasVariable, Logs
from tfdist.internals.keras_3 import BaseOptimizer
from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.keras.callback import Callback, with_callback
from tfdist.keras.registry import hooks, install
from tfdist.plan.costs import GradientBucket, bucketed
from tfdist.plan.no_saves import without_files

if TYPE_CHECKING:
    import keras
    import numpy as np

# The first steps trace functions, and the next ones fill caches.
WARM_UP = 3


class StepRecorder:
    """The measurements of this process's steps.

    Args:
      result: the file to write.
      steps: the number of steps to time.
    """

    def __init__(self, result: Path, steps: int) -> None:
        self._result, self._wanted = result, steps
        self._variables: dict[str, keras.Variable] = {}
        self._tables: dict[str, Any] = {}
        self._rows: dict[str, list[int]] = {}
        # Parameters of each bucket of dense gradients, and when it was complete in each step.
        self._buckets: list[int] = []
        self._ready: list[list[float]] = []
        self._model: Any = None
        self._optimizer: Any = None
        self._steps = 0
        self._is_step_by_step = True
        self._seconds: list[float] = []
        self._last: float | None = None
        self._lock = threading.Lock()

    @property
    def is_fitting(self) -> bool:
        """Whether a `fit` takes the times."""
        return self._model is not None

    def begin_fit(self, model: KerasModel) -> None:
        """Says that a model's `fit` runs from now on."""
        self._model = model
        self._last = None

    def end_fit(self) -> None:
        """Says that `fit` has ended."""
        if self._model is not None:
            self._note_model()
        self._model = self._last = None

    def gradients(
        self,
        optimizer: KerasOptimizer,
        gradients: Sequence[Gradient | None],
        variables: Sequence[KerasVariable],
    ) -> None:
        """Notes what an optimizer applies; puts a clock into a custom loop's step."""
        self._optimizer = self._optimizer or optimizer
        for gradient, variable in zip(gradients, variables, strict=True):
            name = _name(variable)
            self._variables[name] = variable
            if isinstance(gradient, tf.IndexedSlices):
                self._tables[name] = variable
                self._count_rows(name, gradient.indices)
        if self.is_fitting and optimizer is self._optimizer and self._runs_python:
            self._watch(gradients, variables)
        if self.is_fitting or optimizer is not self._optimizer or not _is_first_replica():
            return
        if tf.executing_eagerly():
            self.step()
        else:
            tf.numpy_function(self.step, [], [])

    @property
    def _runs_python(self) -> bool:
        """Whether a step of `fit` may call Python: XLA compiles none."""
        return not self._model.jit_compile and not tf.executing_eagerly() and _is_first_replica()

    def _watch(
        self, gradients: Sequence[Gradient | None], variables: Sequence[KerasVariable]
    ) -> None:
        """Puts a clock behind each bucket, which are tfdist's: the last variable first."""
        # Tables of tfdist have no elements here.
        dense = [
            (gradient, size)
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None and not isinstance(gradient, tf.IndexedSlices)
            if (size := math.prod(variable.shape))
        ][::-1]
        self._buckets = [
            b.parameters for b in bucketed([GradientBucket(size, 0.0) for _, size in dense])
        ]
        self._ready = [[] for _ in self._buckets]
        left = iter(dense)
        for at, parameters in enumerate(self._buckets):
            waited_for = []
            while parameters:
                gradient, size = next(left)
                waited_for.append(gradient)
                parameters -= size
            with tf.control_dependencies(waited_for):
                tf.numpy_function(functools.partial(self._note_ready, at), [], [])

    def _note_ready(self, bucket: int) -> None:
        if self._last is not None and self._steps >= WARM_UP:
            self._ready[bucket].append(time.perf_counter() - self._last)

    def _count_rows(self, name: str, indices: tf.Tensor) -> None:
        def count(values: np.ndarray) -> None:
            self._rows.setdefault(name, []).append(len(set(values.reshape(-1).tolist())))

        if tf.executing_eagerly():
            count(indices.numpy())
        elif not self.is_fitting or self._runs_python:
            tf.numpy_function(count, [indices], [])

    def restart_clock(self) -> None:
        """The time until now belongs to no step."""
        self._last = time.perf_counter()

    def step(self, count: int = 1) -> None:
        """Says that steps have ended; ends the process after the last one."""
        now = time.perf_counter()
        with self._lock:
            if self._last is not None and self._steps >= WARM_UP:
                self._seconds += [(now - self._last) / count] * count
            self._last = now
            self._steps += count
            # Their clocks tell of one of several steps that the callback cannot tell apart.
            self._is_step_by_step = self._is_step_by_step and count == 1
            if len(self._seconds) >= self._wanted:
                self.end()

    def write(self) -> None:
        """Writes what is known."""
        if self._model is not None:
            self._note_model()
        sizes = {name: math.prod(v.shape) for name, v in self._variables.items()}
        tables = [
            {
                "name": name,
                "rows": int(variable.shape[0]),
                "width": math.prod(variable.shape[1:]),
                "rows_per_step": _mean(self._rows.get(name, [])),
            }
            for name, variable in self._tables.items()
        ]
        report = {
            "seconds": self._seconds,
            "steps": self._steps,
            "dense": sum(size for name, size in sizes.items() if name not in self._tables),
            "tables": tables,
            "buckets": self._profile(),
            "memory": self._memory(),
        }
        unfinished = self._result.with_suffix(".new")
        unfinished.write_text(json.dumps(report))
        unfinished.rename(self._result)

    def _memory(self) -> dict[str, int]:
        """The memory that training needs, as for `ModelMemory`."""
        layers: dict[str, int] = {}
        for name, variable in self._variables.items():
            layer = name.rpartition("/")[0]
            layers[layer] = layers.get(layer, 0) + _bytes(variable)
        weights = sum(layers.values())
        slots = sum(_bytes(v) for v in getattr(self._optimizer, "variables", ()))
        rest = _peak_memory() - 2 * weights - slots
        two = sum(sorted(layers.values())[-2:])
        return {"weights": weights, "slots": slots, "layers": two, "rest": max(0, rest)}

    def _profile(self) -> list[dict[str, float]]:
        """When each bucket is complete, as a part of the step; empty if that is not known."""
        if not self._is_step_by_step or not self._seconds or not all(self._ready):
            return []
        step = statistics.median(self._seconds)
        parts = [min(1.0, statistics.median(times) / step) for times in self._ready]
        # A clock may be called late.
        parts = list(itertools.accumulate(parts, max))
        return [
            {"parameters": parameters, "ready": part}
            for parameters, part in zip(self._buckets, parts, strict=True)
        ]

    def end(self) -> NoReturn:
        """Writes the result and ends the process, from any thread, even if locks are held."""
        self.write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _note_model(self) -> None:
        for variable in self._model.trainable_variables:
            self._variables.setdefault(_name(variable), variable)


class _Clock(Callback):
    """Tells the recorder of the steps of `fit`."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._next = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._next = 0

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        # An epoch's first step: evaluation and other work between epochs does not count.
        if self._next == 0:
            self._recorder.restart_clock()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        count = batch + 1 - self._next
        self._next = batch + 1
        self._recorder.step(count)


# The recorders that the hooks below call; `main` sets it once, before they are installed.
_recorders: list[StepRecorder] = []


@hooks(BaseOptimizer, "apply")
def note_gradients(
    original: Callable,
    self: BaseOptimizer,
    grads: Iterable[Gradient | None],
    trainable_variables: Iterable[keras.Variable] | None = None,
) -> None:
    """Notes which variables have dense gradients, and which have gradients of rows."""
    variables = self._trainable_variables if trainable_variables is None else trainable_variables
    gradients = list(grads)
    _recorders[0].gradients(self, gradients, list(variables))
    return original(self, gradients, trainable_variables)


@hooks(TensorFlowTrainer, "fit")
def time_steps(
    original: Callable,
    self: TensorFlowTrainer,
    x: Any = None,
    y: Any = None,
    batch_size: Any = None,
    epochs: Any = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Times the steps of `fit`."""
    recorder = _recorders[0]
    recorder.begin_fit(self)
    try:
        with (
            without_files(callbacks) as others,
            with_callback(others, _Clock(recorder), first=True) as given,
        ):
            return original(self, x, y, batch_size, epochs, verbose, given, *args, **kwargs)
    finally:
        recorder.end_fit()


def main(arguments: list[str]) -> int:
    """Runs the script; see the module.

    Returns:
      The exit code: 0 if the result was written.
    """
    result, steps, script, *rest = arguments
    _end_with_parent()
    recorder = StepRecorder(Path(result), int(steps))
    _recorders.append(recorder)
    own = __name__ if __name__ != "__main__" else "tfdist.plan.alone"
    install(own, "tfdist.plan.no_saves")
    sys.argv = [script, *rest]
    # As `python script.py` has it.
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        recorder.write()
    return 0


def _end_with_parent() -> None:
    """Ends this process when its stdin, the parent's pipe, is closed; the script gets none."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(pipe, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="tfdist plan: parent", daemon=True).start()


def _is_first_replica() -> bool:
    context = tf.distribute.get_replica_context()
    if context is None:
        return True
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    return replica is None or int(replica) == 0


def _name(variable: KerasVariable) -> str:
    return str(getattr(variable, "path", variable.name))


def _bytes(variable: KerasVariable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def _peak_memory() -> int:
    """The most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


if __name__ == "__main__":
    # The hooks belong to the module of this name, which is another one than `__main__`.
    from tfdist.plan import alone

    sys.exit(alone.main(sys.argv[1:]))
