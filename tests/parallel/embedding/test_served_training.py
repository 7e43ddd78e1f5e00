"""Training in one job, serving in other processes: a model follows, and no request fails."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest

import tfdist
from support.patience import wait_until
from support.ps_job import on_job, served
from support.served_tables import addresses, serving
from support.training.embeddings import dataset, examples, model_with, remote_embedding
from support.training.models import difference
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.serving.tables.publisher import Publisher
from tfdist.serving.tables.training import Training

SNAPSHOTS = "snapshots"


def strategy_of(ctx):
    return tfdist.ParameterServerStrategy(
        checkpoint_dir=str(ctx.tmp_path / SNAPSHOTS), checkpoint_every=3600.0
    )


# Rows of exact_adam change in steps in which they have no gradient.
@pytest.mark.parametrize("optimizer", ["adagrad", "exact_adam"])
@pytest.mark.timeout(120)
@on_job(1, servers=2)
def test_a_served_model_follows_a_training(ctx, optimizer, monkeypatch):
    monkeypatch.setenv("TFDIST_CHECKPOINT_DIR", str(ctx.tmp_path / SNAPSHOTS))
    if served():
        return
    strategy = strategy_of(ctx)
    with strategy.scope():
        model = model_with(remote_embedding(optimizer), keras.optimizers.Adam(0.05))
    model.fit(dataset(64, 16), verbose=0)
    ids = np.concatenate([examples(40)[0], [[10**15, -7, 3]]])
    folder = str(ctx.tmp_path / "model")
    tfdist.export_for_serving(model, folder, tables="served")

    cluster = Cluster.from_environment()
    training = Training("a test", None, cluster.tf_config(), str(ctx.tmp_path / SNAPSHOTS))
    published = str(ctx.tmp_path / "published")
    publisher = Publisher(published)
    assert publisher.publish(training.snapshot()).is_whole
    group = addresses(2)
    settings = Settings.from_environment()
    with (
        serving(published, group, 0, 2, follow=0.05, settings=settings) as first,
        serving(published, group, 1, 2, follow=0.05, settings=settings) as second,
    ):
        loaded = tfdist.serving.load(folder, group)
        local = tfdist.serving.load(folder, tables=published)
        expected = model.predict(ids, verbose=0)
        for one in (loaded, local):
            assert difference([one.serve(ids).numpy()], [expected]) <= 1e-6
        followers = [tfdist.serving.TableFollower(one, published, 0.05) for one in (loaded, local)]
        asking = Asking(loaded, ids)
        try:
            for _ in range(3):
                model.fit(dataset(64, 16), verbose=0)
                expected = model.predict(ids, verbose=0)  # waits for this worker's pushes
                done = publisher.publish(training.snapshot())
                for one in (first, second, *followers):
                    reaches(one, done.number)
                for one in (loaded, local):
                    assert difference([one.serve(ids).numpy()], [expected]) <= 1e-6
        finally:
            asking.end()
        assert not asking.problems
        assert asking.count > 3
        for one in (*followers, training):
            one.close()
        for one in (loaded, local):
            one.table_connection.close()


class Asking:
    """A thread that sends requests to a model until its end.

    Args:
      model: a served model.
      ids: of each request.
    """

    def __init__(self, model, ids) -> None:
        self._model, self._ids = model, ids
        self.problems, self.count = [], 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                self._model.serve(self._ids)
                self.count += 1
            except Exception as error:
                self.problems.append(error)

    def end(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()


def reaches(one, number):
    wait_until(lambda: one.number == number, f"publication {number}")
