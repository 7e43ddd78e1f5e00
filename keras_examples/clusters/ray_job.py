"""The training of train.py as a job on a Ray cluster.

    python keras_examples/clusters/ray_job.py --workers 4 --output /shared/run
    python keras_examples/clusters/ray_job.py --workers 4 --elastic 2 8 --output /shared/run

Without a cluster (`ray start`, or RAY_ADDRESS) Ray starts one on this machine. The folder of the
output must be shared by all nodes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tfdist

HERE = str(Path(__file__).resolve().parent)


def train_worker(config: dict) -> float:
    sys.path.insert(0, config.pop("folder"))
    import train  # imports TensorFlow, so not in the driver

    return train.train(**config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", required=True, help="the folder of the backup")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elastic", type=int, nargs=2, metavar=("LEAST", "MOST"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--steps-per-epoch", type=int, default=50)
    arguments = parser.parse_args()
    result = tfdist.ray.run(
        train_worker,
        config={
            "folder": HERE,
            "output": arguments.output,
            "epochs": arguments.epochs,
            "steps_per_epoch": arguments.steps_per_epoch,
        },
        num_workers=arguments.workers,
        elastic=tuple(arguments.elastic) if arguments.elastic else None,
        max_failures=3,
        placement="SPREAD",
    )
    print(f"{len(result.values)} workers have ended, the weights' sum is {result.values[0]:.2f}")
    print(f"restarts: {result.restarts}, preemptions: {result.preemptions}")


if __name__ == "__main__":
    main()
