"""A search of KerasTuner over small models, and what it leaves."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

TRIALS = 3


def tuner_package() -> Any:
    """Imports KerasTuner, which imports TensorBoard for each trial even without its callback."""
    for name in ("", ".plugins", ".plugins.hparams", ".plugins.hparams.api"):
        name = f"tensorboard{name}"
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
    sys.modules["tensorboard.plugins.hparams"].api = sys.modules["tensorboard.plugins.hparams.api"]
    import keras_tuner

    return keras_tuner


def build(hp: Any) -> keras.Model:
    """A model of the search space."""
    model = keras.Sequential([keras.Input((4,))])
    for _ in range(hp.Int("layers", 1, 2)):
        model.add(keras.layers.Dense(hp.Int("units", 2, 9), activation="tanh"))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.SGD(hp.Float("rate", 0.001, 0.2, sampling="log")), "mse")
    return model


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Features and targets."""
    x = np.random.default_rng(5).normal(size=(48, 4))
    return x, np.sin(x.sum(axis=1, keepdims=True))


def data() -> dict[str, Any]:
    """The arguments of `search`."""
    x, y = rows()
    return {
        "x": x[:32],
        "y": y[:32],
        "validation_data": (x[32:], y[32:]),
        "batch_size": 16,
        "epochs": 2,
        "verbose": 0,
    }


def start(directory: Path, strategy: Any = None, kind: str = "RandomSearch", **options: Any) -> Any:
    """Makes a tuner."""
    kt = tuner_package()
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(3)
    more = {"max_epochs": 2, "factor": 2} if kind == "Hyperband" else {"max_trials": TRIALS}
    options = {"seed": 2, "overwrite": True, **more, **options}
    return getattr(kt, kind)(
        build,
        objective="val_loss",
        directory=str(directory),
        project_name="p",
        distribution_strategy=strategy,
        **options,
    )


def results(tuner: Any) -> list[Any]:
    """The trials: their number, hyperparameters, status and score."""
    trials = sorted(tuner.oracle.trials.values(), key=lambda trial: trial.trial_id)
    return [(t.trial_id, t.hyperparameters.values, t.status, t.score) for t in trials]


def files(directory: Path) -> dict[str, Any]:
    """The contents of each file, by its path; without times, and messages with tracebacks."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.suffix == ".json":
            found[name] = json.loads(path.read_text())
            found[name].pop("display", None)
            found[name].pop("message", None)
        elif path.suffix == ".h5":
            found[name] = weights_of(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def weights_of(path: Path) -> list[Any]:
    """The arrays of a checkpoint, as lists."""
    arrays: list[Any] = []
    with h5py.File(path) as file:
        file.visititems(
            lambda _, item: (
                arrays.append(item[()].tolist()) if isinstance(item, h5py.Dataset) else None
            )
        )
    return arrays


def assert_close(received: Any, expected: Any, where: str = "") -> None:
    """Asserts that nested values are the same, and numbers are up to the rounding of sums."""
    if isinstance(expected, dict):
        assert received.keys() == expected.keys(), (where, received.keys(), expected.keys())
        for key in expected:
            assert_close(received[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(received) == len(expected), (where, received, expected)
        for i, (left, right) in enumerate(zip(received, expected, strict=True)):
            assert_close(left, right, f"{where}/{i}")
    elif isinstance(expected, float):
        assert np.isclose(received, expected, rtol=1e-10, atol=1e-12), (where, received, expected)
    else:
        assert received == expected, (where, received, expected)
