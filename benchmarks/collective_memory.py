"""Resident memory of collectives over many steps: after the first fifth it must not grow.

    tfdist run --workers 2 benchmarks/collective_memory.py --steps 20000

Every step runs collectives of several kinds in a tf.function, and one eagerly, of sizes that change
from step to step.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import tensorflow as tf

import tfdist
from tfdist import ops


def resident_megabytes() -> float:
    """What this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def step(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        total, greatest = ops.all_reduce([x, 2.0 * x])
        rows = ops.all_gather(total[: 1 + tfdist.rank()])
        part = ops.reduce_scatter(greatest)
        words = ops.all_gather(tf.fill([2], "word"))
        value = tf.reduce_sum(rows) + tf.reduce_sum(part) + tf.cast(tf.size(words), tf.float32)
    return tf.reduce_sum(tape.gradient(value, x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    tfdist.init()
    sizes = [3, 1000, 0, 40_000, 17]
    first = 0.0
    for done in range(steps + 1):
        if done % (steps // 5) == 0:
            gc.collect()
            if done == steps // 5:
                first = resident_megabytes()
            print(f"rank {tfdist.rank()}: {done} steps, {resident_megabytes():.1f} MB", flush=True)
        step(tf.ones([max(2, sizes[done % len(sizes)])]))
        ops.broadcast(tf.ones([sizes[(done + 1) % len(sizes)]]))
    print(f"rank {tfdist.rank()}: grew by {resident_megabytes() - first:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
