"""A training worker of benchmarks/data_service.py: takes batches, and times its epochs.

tfdist run --workers 2 [--data-workers N] data_reader.py PIPELINE ROWS ROUNDS REPORT
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import tensorflow as tf

# A pipeline that waits must do so in TensorFlow's C++: data workers run no Python functions.
from tensorflow.python.data.experimental.ops.testing import sleep

import tfdist

BATCH = 32
WAIT_US = 2000
PRODUCTS, SIDE = 12, 96


def compute(row: tf.Tensor) -> tf.Tensor:
    """Returns `row`, after some matrix products."""
    matrix = tf.eye(SIDE) * tf.cast(row % 7 + 1, tf.float32) / 7
    for _ in range(PRODUCTS):
        matrix = tf.linalg.matmul(matrix, matrix)
    # The products are bounded by 1; adding none of them must not let the graph drop them.
    return row + tf.cast(tf.minimum(tf.reduce_sum(matrix), 0.0), tf.int64)


def made(pipeline: str, rows: int) -> tf.data.Dataset:
    """Returns the batches of one of the two pipelines."""
    dataset = tf.data.Dataset.range(rows)
    dataset = dataset.map(compute) if pipeline == "computes" else dataset.apply(sleep(WAIT_US))
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1  # a row takes one processor
    return dataset.batch(BATCH).with_options(options)


def main(pipeline: str, rows: int, rounds: int, report: Path) -> None:
    strategy = tfdist.MultiWorkerMirroredStrategy()
    dataset = made(pipeline, rows)
    if tfdist.Cluster.from_environment().data_workers:
        dataset = tfdist.data.distribute(dataset)
    distributed = strategy.experimental_distribute_dataset(dataset)

    own = [
        row
        for batch in distributed
        for row in strategy.experimental_local_results(batch)[0].numpy().tolist()
    ]
    found = sorted(row for share in tfdist.all_gather_object(own) for row in share)
    if found != list(range(rows)):
        raise AssertionError(f"expected each of {rows} rows once, received {len(found)}")

    seconds = []
    for _ in range(rounds):
        tfdist.ops.barrier()
        start = time.perf_counter()
        for _ in distributed:
            pass
        tfdist.ops.barrier()
        seconds.append(time.perf_counter() - start)
    if strategy.is_chief:
        report.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
