"""In "sync" a worker without rows computes on a substitute row, which reaches no sum."""

from __future__ import annotations

import functools

import parity_models
from layer_cases import CASES
from models import identical
from ps_job import meet, on_job, served
from tiers import LONG, chosen

import tfdist

LAYERS = chosen(CASES, "DepthwiseConv2D", "SeparableConv1D", "pooled mask")


def _like_alone(results):
    results = [result for result in results if result is not None]
    for name, case in LAYERS.items():
        of_workers = [result[name] for result in results]
        identical([[*one.weights, *one.slots, *one.history.values()] for one in of_workers])
        parity_models.assert_like_alone("ParameterServerStrategy", name, case, of_workers[0])


@on_job(2, timeout=900.0 if LONG else 150.0, check=_like_alone)
def test_layers(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {
        name: parity_models.train(case, strategy, functools.partial(meet, ctx, name))
        for name, case in LAYERS.items()
    }
