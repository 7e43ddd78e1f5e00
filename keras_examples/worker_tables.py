"""DLRM on SYNTHETIC clicks, whose 26 tables are dealt over the workers: no parameter servers.

    tfdist run --workers 2 keras_examples/worker_tables.py

prints once, from worker 0 (on two cores, in about a minute):

    [worker 0] SYNTHETIC clicks, 2 workers without ps tasks: 300 steps of 1024 examples
    [worker 0] 300/300 - ... - loss: 0.51
    [worker 0] rows of the 26 tables, a share of 50% on each worker: (...)
    [worker 0] AUC on held-out synthetic clicks: 0.71; best possible: 0.80

The model and the clicks of criteo_synthetic.py. Each worker trains its part of a batch, and holds
the rows whose ids belong to it. The workers make every step together, so the result does not depend
on their number: start it with `--workers 1` to compare.
"""

from __future__ import annotations

import argparse
import sys

import criteo
import keras
from common import SEED, area_under_curve, positive
from criteo_synthetic import build_model, clicks

import tfdist


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--batch-size", type=positive, default=1024, help="of all workers together")
    parser.add_argument("--test-batches", type=positive, default=40)
    parser.add_argument("--width", type=positive, default=16, help="of the rows")
    parser.add_argument("--seed", type=int, default=SEED, help="of the clicks")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(SEED)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    steps, size = arguments.steps, arguments.batch_size

    with strategy.scope():
        model = build_model(arguments.width, min_count=1, placement="workers")
        model.compile(
            optimizer=keras.optimizers.Adagrad(0.1),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    if strategy.is_chief:
        print(
            f"SYNTHETIC clicks, {tfdist.size()} workers without ps tasks: {steps} steps of {size} "
            "examples",
            flush=True,
        )

    # A progress bar needs a terminal; in a file one line per epoch is easier to read.
    chief_verbosity = 1 if sys.stdout.isatty() else 2
    model.fit(
        clicks(arguments.seed, 0, steps, size),
        shuffle=False,
        verbose=chief_verbosity if strategy.is_chief else 0,
    )

    held_out = (arguments.seed, steps, arguments.test_batches, size)
    scores = model.predict(clicks(*held_out), verbose=0)[:, 0]
    if strategy.is_chief:
        rows = sum(int(layer.table.size()) for layer in model.layers if hasattr(layer, "table"))
        print(f"rows of the 26 tables, a share of {1 / tfdist.size():.0%} on each worker: {rows}")
        labels, logits = criteo.labels_and_logits(*held_out)
        print(
            f"AUC on held-out synthetic clicks: {area_under_curve(labels, scores):.4f}; "
            f"best possible: {area_under_curve(labels, logits):.4f}"
        )


if __name__ == "__main__":
    main()
