"""A worker without rows computes on a substitute row, which reaches no sum."""

from __future__ import annotations

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import LONG, chosen
from support.training import parity_models
from support.training.layer_cases import CASES
from support.training.models import identical

# Kernels that fail on empty batches, or give gradients of memory that nothing has written.
LAYERS = chosen(CASES, "pooled mask", "BatchNormalization")


def _like_alone(results):
    for name, case in LAYERS.items():
        of_workers = [result[name] for result in results]
        identical([[*one.weights, *one.slots, *one.history.values()] for one in of_workers])
        parity_models.assert_like_alone("MultiWorkerMirroredStrategy", name, case, of_workers[0])


@on_ranks(2, timeout=900.0 if LONG else 150.0, check=_like_alone)
def test_layers(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    return {name: parity_models.train(case, strategy) for name, case in LAYERS.items()}
