"""`BackupAndRestore` with parameter servers."""

from __future__ import annotations

import keras
from keras.callbacks import BackupAndRestore

import tfdist
from support.ps_job import meet, on_job, served
from support.training import resuming
from support.training.models import ADAPTIVE, built_classifier


@on_job(2)
def test_a_job_in_sync_goes_on_as_a_whole(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode="sync")

    def build():
        with strategy.scope():
            return built_classifier(keras.optimizers.Adam(0.01), middle=[keras.layers.Dropout(0.2)])

    resuming.assert_goes_on(
        build,
        resuming.INPUTS["dataset"],
        lambda: BackupAndRestore(str(ctx.tmp_path / f"backup-{ctx.rank}"), save_freq=4),
        at=(1, 3),
        goes_on_at=(1, 2),
        tolerance=ADAPTIVE,
        between=lambda: meet(ctx, "interrupted"),
    )
