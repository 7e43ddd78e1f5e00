"""An Estimator with compressed gradients: the state of compression is in local variables."""

from __future__ import annotations

import pytest

import tfdist
from support.estimator import estimators
from support.estimator.estimators import STEPS, input_fn, saved
from support.processes.ranks import on_ranks
from support.training.models import identical
from tfdist.compression import PowerSGD, TopK


@pytest.mark.long(covered_by="parallel/keras/test_compressed_training.py")
@on_ranks(2, check=identical, timeout=120)
def test_training(ctx):
    plain = None
    values = []
    # Of the two kernels one is large enough.
    for method in ("none", TopK(0.25, min_elements=30), PowerSGD(1, min_elements=30)):
        options = tfdist.CommunicationOptions(compression=method)
        strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
        seen = estimators.Seen(strategy)
        name = type(method).__name__
        model = estimators.make(ctx.tmp_path / name, strategy, ctx.rank, optimizer="sgd")
        before = strategy.communication_stats().bytes_sent
        model.train(input_fn(), hooks=[seen], max_steps=STEPS)
        sent = strategy.communication_stats().bytes_sent - before
        values += seen.all()
        if ctx.rank == 0:
            names = sorted(saved(model.model_dir))
            plain = plain or (names, sent)
            assert names == plain[0]
            assert sent < plain[1] or method == "none"
    return values
