"""The sum of all replicas' gradients in one process: tfdist and TensorFlow, in one run.

    python benchmarks/local_reduce.py [--devices 2 --devices 4] [--rounds 25] [--scale 1]
                                      [--json FILE]

160 float32 gradients with the shapes of ResNet-50 are on 2 and on 4 logical CPU devices. Each
implementation is a `tf.distribute.CrossDeviceOps` that gives every device their sums; "stock
default" is the default of `tf.distribute.MirroredStrategy` for CPU devices, a ring of collective
ops. There are three situations:

    step    in a tf.function without other users of the gradients, as in training: a sum may reuse
            the memory of one of them
    held    in a tf.function with another user of the gradients: sums need their own memory
    eager   without a tf.function; Python holds the gradients

Results are verified before the timing. Implementations are timed in turn, round by round; the table
shows medians. In a tf.function two clock ops measure the time: one after the last gradient exists,
one after the last sum exists.

The bytes moved are counted from the ops of the traced graph: an op that does not forward its
memory reads all its float inputs once and writes all its float outputs once. A sum of R lists of K
bytes needs at least (R + 1) K. Not counted, because graphs do not show them: the reads of a
processor before it writes memory (unless in place or around its caches), and the traffic inside the
ops of collectives. The last line of a situation is the reference of the machine: memcpy, on all
processors, with (R + 1) K bytes read and written.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import numpy as np
import tensorflow as tf
from absl import app, flags
from reporting import charts, results

# The argument of a CrossDeviceOps; it has no public name.
from tensorflow.python.distribute.values import PerReplica

from tfdist.strategies._local_reduce.local_all_reduce import LocalAllReduce

# TensorFlow's HierarchicalCopyAllReduce skips a device if their number is odd.
DEVICES = flags.DEFINE_multi_integer("devices", [2, 4], "logical devices, an even number")
ROUNDS = flags.DEFINE_integer("rounds", 25, "counted rounds of each implementation", lower_bound=3)
SCALE = flags.DEFINE_float("scale", 1.0, "of the width of the network", lower_bound=0.01)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

SITUATIONS = ("step", "held", "eager")
COPY = "memcpy of the least"
MOVE_NOTHING = ("Identity", "Placeholder", "Reshape", "Shape", "Size")
MOVE_NOTHING += ("TfdistBundle", "TfdistUnbundle")

Replicas = list[list[tf.Tensor]]
# From gradients to the sums on every device, and the seconds.
Reduction = Callable[[Replicas], tuple[Replicas, float]]


def resnet50_shapes(scale: float) -> list[tuple[int, ...]]:
    """The 160 variables' shapes, without the classifier's bias; 25.6 M elements at scale 1."""

    def width(channels: int) -> int:
        return max(1, round(channels * scale))

    shapes: list[tuple[int, ...]] = []

    def convolution(size: int, inputs: int, outputs: int) -> None:
        # The kernel, and the scale and offset of the batch normalization after it.
        shapes.extend([(size, size, inputs, outputs), (outputs,), (outputs,)])

    inputs = width(64)
    convolution(7, 3, inputs)
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        inner, outputs = width(channels), width(4 * channels)
        for block in range(blocks):
            convolution(1, inputs, inner)
            convolution(3, inner, inner)
            convolution(1, inner, outputs)
            if block == 0:
                convolution(1, inputs, outputs)
            inputs = outputs
    shapes.append((inputs, 1000))
    return shapes


def gradients(shapes: list[tuple[int, ...]], devices: list[str]) -> Replicas:
    """Whole numbers, exact in float32, different on every device."""
    replicas: Replicas = []
    for r, device in enumerate(devices):
        with tf.device(device):
            replicas.append([])
            for i, shape in enumerate(shapes):
                pattern = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) % 1000
                # The addition moves the values to TensorFlow's memory, like gradients.
                replicas[r].append(tf.constant(pattern) + (i + 10.0 * r))
    return replicas


def reduce_with(implementation: tf.distribute.CrossDeviceOps, replicas: Replicas) -> Replicas:
    """The sums, on every device."""
    values = [PerReplica(value) for value in zip(*replicas, strict=True)]
    sums = implementation.batch_reduce(tf.distribute.ReduceOp.SUM, [(v, v) for v in values])
    return [list(value) for value in zip(*(s.values for s in sums), strict=True)]


def make_reduction(
    implementation: tf.distribute.CrossDeviceOps, devices: list[str], situation: str
) -> Reduction:
    def on_devices(make: Callable, replicas: Replicas) -> Replicas:
        placed = []
        for device, tensors in zip(devices, replicas, strict=True):
            with tf.device(device):
                placed.append([make(tensor) for tensor in tensors])
        return placed

    def clock(after: Replicas) -> tf.Tensor:
        ready = [tensor for tensors in after for tensor in tensors]
        with tf.device(devices[0]), tf.control_dependencies(ready):
            return tf.timestamp()

    @tf.function
    def in_graph(replicas, one):
        # The product is a new tensor that only the reduction reads.
        given = on_devices(tf.identity if situation == "held" else lambda t: t * one, replicas)
        begin = clock(given)
        with tf.control_dependencies([begin]):
            sums = reduce_with(implementation, on_devices(tf.identity, given))
        return sums, clock(sums) - begin

    def eagerly(replicas):
        begin = time.perf_counter()
        sums = reduce_with(implementation, replicas)
        return sums, time.perf_counter() - begin

    one = tf.constant(1.0)
    return eagerly if situation == "eager" else lambda replicas: in_graph(replicas, one)


def count_bytes(implementation: tf.distribute.CrossDeviceOps, replicas: Replicas) -> int | None:
    """The bytes that the ops of its graph read and write; `None` for collectives."""

    @tf.function
    def reduce(replicas):
        placed = []
        for tensors, like in zip(replicas, devices, strict=True):
            with tf.device(like):
                placed.append([tf.identity(tensor) for tensor in tensors])
        return reduce_with(implementation, placed)

    devices = [tensors[0].device for tensors in replicas]
    moved = 0
    for op in reduce.get_concrete_function(replicas).graph.get_operations():
        if op.type.startswith("Collective"):
            return None
        whole = op.type == "SplitV" and len(op.outputs) == 1
        if op.type in MOVE_NOTHING or whole:
            continue
        floats = [t for t in (*op.inputs, *op.outputs) if t.dtype == tf.float32]
        moved += sum(4 * tensor.shape.num_elements() for tensor in floats)
    return moved


def make_copy(moved: int) -> Reduction:
    """Reads and writes `moved` bytes in all, on all processors."""
    threads = os.cpu_count() or 1
    source = np.ones((threads, moved // threads // 8), np.float32)
    target = np.zeros_like(source)
    pool = ThreadPoolExecutor(threads)

    def copy(replicas):
        begin = time.perf_counter()
        list(pool.map(np.copyto, target, source))
        return replicas, time.perf_counter() - begin

    return copy


def verify(name: str, sums: Replicas, replicas: Replicas) -> None:
    for i, tensors in enumerate(zip(*replicas, strict=True)):
        expected = sum(tensor.numpy() for tensor in tensors)
        for r, tensors in enumerate(sums):
            if not np.array_equal(tensors[i], expected):
                raise AssertionError(f"{name}: wrong sum of gradient {i} on device {r}")


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(
    implementations: dict[str, Reduction], replicas: Replicas
) -> dict[str, tuple[float, float]]:
    """Median seconds and page faults of each implementation, timed in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in implementations}
    faults: dict[str, list[int]] = {name: [] for name in implementations}
    for _ in range(ROUNDS.value + 2):
        for name, reduce in implementations.items():
            before = page_faults()
            sums, took = reduce(replicas)
            seconds[name].append(float(took))
            faults[name].append(page_faults() - before)
            del sums  # frees the memory before the next implementation
    return {
        name: (statistics.median(seconds[name][2:]), statistics.median(faults[name][2:]))
        for name in implementations
    }


def compare(count: int) -> list[dict]:
    """The rows of the table for `count` devices."""
    devices = [device.name for device in tf.config.list_logical_devices("CPU")[:count]]
    replicas = gradients(resnet50_shapes(SCALE.value), devices)
    least = (count + 1) * sum(4 * tensor.shape.num_elements() for tensor in replicas[0])
    # A process's collectives use one set of devices for each key.
    tf.distribute.MirroredStrategy._collective_key_base += 1000
    implementations = {
        "tfdist": LocalAllReduce(devices[0]),
        "stock default": tf.distribute.MirroredStrategy(devices).extended._cross_device_ops,
        "ReductionToOneDevice": tf.distribute.ReductionToOneDevice(),
        "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce(),
    }
    moved = {
        name: count_bytes(implementation, replicas)
        for name, implementation in implementations.items()
    }
    moved[COPY] = least
    rows = []
    for situation in SITUATIONS:
        reductions = {
            name: make_reduction(implementation, devices, situation)
            for name, implementation in implementations.items()
        }
        for name, reduce in reductions.items():
            verify(name, reduce(replicas)[0], replicas)
        measured = measure(reductions | {COPY: make_copy(least)}, replicas)
        for name, (seconds, faults) in measured.items():
            rows.append(
                {
                    "devices": count,
                    "situation": situation,
                    "implementation": name,
                    "seconds": seconds,
                    "ratio": seconds / measured["tfdist"][0],
                    "moved_bytes": moved[name],
                    "least_bytes": least,
                    "page_faults": faults,
                }
            )
    return rows


def show(rows: list[dict]) -> None:
    print(f"\n{'devices':>7}  {'situation':9}  {'':25} {'ms':>7} {'tfdist faster':>13}", end="")
    print(f" {'MB moved':>9} {'of least':>8} {'page faults':>11}")
    for row in rows:
        moved = row["moved_bytes"]
        traffic = f"{'-':>9} {'-':>8}"
        if moved is not None:
            traffic = f"{moved / 1e6:9.1f} {moved / row['least_bytes']:7.2f}x"
        print(
            f"{row['devices']:7}  {row['situation']:9}  {row['implementation']:25} "
            f"{row['seconds'] * 1e3:7.2f} {row['ratio']:12.2f}x {traffic} "
            f"{row['page_faults']:11.0f}"
        )


def draw(file: Path, rows: list[dict]) -> None:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        group = groups.setdefault(f"{row['devices']} devices,\n{row['situation']}", {})
        group[row["implementation"]] = row["seconds"] * 1e3
    title = "The sum of ResNet-50's gradients over the devices of a process"
    charts.bars(file, title, "milliseconds (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    tf.get_logger().setLevel("WARNING")  # TensorFlow's reductions log each call
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * max(DEVICES.value),
    )
    rows = [row for count in DEVICES.value for row in compare(count)]
    show(rows)
    figures = {"scale": SCALE.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    app.run(main)
