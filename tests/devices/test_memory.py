"""Central storage holds parameters and slots once, mirrored once per replica."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import keras
import pytest
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from devices.replicas import DEVICES, make_strategy
from support.launching import PACKAGE
from support.training import models
from support.training.models import classifier

# Copies of each variable with four replicas.
COPIES = {"none": 1, "central": 1, "mirrored": DEVICES}
SIDE = 3072
PARAMETER = SIDE * SIDE * 4 / 2**20  # MiB
HELD = 3  # Adam: the parameter itself and two slots

# Prints, for each strategy, how many MiB two training steps leave in use.
MEASURE = """
import gc, json, sys, time
import keras
import numpy as np
import tensorflow as tf
import tfdist
devices, side = int(sys.argv[1]), int(sys.argv[2])
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * devices
)

def in_use():
    # The lowest in a second: TensorFlow frees some memory in the background.
    return min(look() for _ in range(10))

def look():
    time.sleep(0.1)
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

def train(strategy, side):
    with strategy.scope():
        layer = keras.layers.Dense(side, use_bias=False)
        model = keras.Sequential([keras.Input((side,)), layer])
        model.compile("adam", "mse")
    rows = np.ones((4 * devices, side), "float32")
    model.fit(rows, rows, batch_size=2 * devices, verbose=0)
    return model

names = [f"CPU:{i}" for i in range(devices)]
strategies = {
    "none": tf.distribute.get_strategy(),
    "central": tfdist.CentralStorageStrategy(names, "CPU:0"),
    "mirrored": tfdist.MirroredStrategy(names),
}
grown = {}
for name, strategy in strategies.items():
    train(strategy, 8)  # excludes memory that any first training takes
    before = in_use()
    model = train(strategy, side)
    grown[name] = in_use() - before
    del model
print(json.dumps(grown))
"""


@pytest.fixture(scope="module")
def grown() -> dict[str, float]:
    """MiB that a parameter of 36 MiB and Adam's slots take after two steps, by strategy.

    With oneDNN, TensorFlow keeps freed memory in a pool, so temporary values would count too.
    Without it freed memory returns to the system at once: the C library maps each block above 32
    MiB separately.
    """
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, str(DEVICES), str(SIDE)],
        env=dict(os.environ, PYTHONPATH=path, TF_ENABLE_ONEDNN_OPTS="0"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert measured.returncode == 0, measured.stderr[-3000:]
    return json.loads(measured.stdout.splitlines()[-1])


@pytest.mark.long(
    covered_by=(
        "test_what_replicas_share_exists_once_in_central_storage, "
        "test_no_variable_is_made_besides_those"
    )
)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", COPIES)
def test_the_memory_in_use_is_that_of_the_copies(grown, name):
    # Half a parameter allows for other memory, and is less than one copy too many or too few.
    assert abs(grown[name] - COPIES[name] * HELD * PARAMETER) < PARAMETER / 2, grown


def _components(variable) -> tuple:
    """Returns the components of a strategy's variable."""
    value = variable.value
    return getattr(value, "values", None) or (value.get() if hasattr(value, "get") else value,)


def _resources(shape: tuple[int, ...]) -> int:
    """Returns the number of variables of a shape in this process."""
    gc.collect()
    return sum(
        type(thing) is ResourceVariable and tuple(thing.shape) == shape
        for thing in gc.get_objects()
    )


def test_what_replicas_share_exists_once_in_central_storage(kind):
    strategy = make_strategy(kind, DEVICES)
    with strategy.scope():
        normalization = keras.layers.BatchNormalization()
        model = classifier("adam", middle=[normalization])
        metric = keras.metrics.Mean()
    model.fit(models.dataset(64, 32), verbose=0)

    devices = [f"CPU:{i}" for i in range(COPIES[kind])]
    shared = [*model.trainable_variables, *model.optimizer.variables]
    assert len(shared) > 2 * len(model.trainable_variables)
    for variable in shared:
        found = [component.device.rpartition("device:")[2] for component in _components(variable)]
        assert found == devices, variable.path

    # Moving statistics and metrics differ between replicas until they are read.
    separate = [*normalization.non_trainable_variables, *metric.variables]
    assert len(separate) == 4
    for variable in separate:
        found = [component.device.rpartition("device:")[2] for component in _components(variable)]
        assert found == [f"CPU:{i}" for i in range(DEVICES)], variable.path


def test_no_variable_is_made_besides_those(kind):
    width = 13  # a shape that no other test has
    with make_strategy(kind, DEVICES).scope():
        model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    assert _resources((width, width)) == COPIES[kind] * HELD
    del model
    assert _resources((width, width)) == 0
