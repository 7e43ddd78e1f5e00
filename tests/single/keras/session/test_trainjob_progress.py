"""`fit` reports its progress to the TrainJob."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import tfdist
from support.patience import wait_until
from support.status_server import status_server
from support.training.fit_sessions import fit, model, session_of
from tfdist.keras.session import fit_estimate, session, trainjob_progress
from tfdist.keras.session.trainjob_progress import TrainJobProgress
from tfdist.observe.trainjob import Reporter, Status

pytestmark = pytest.mark.timeout(60)


class Reports:
    """A reporter that notes."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def is_due(self) -> bool:
        """Always."""
        return True

    def report(self, status: Status) -> None:
        """Notes."""
        self.statuses.append(status)


def reported(monkeypatch: pytest.MonkeyPatch, rank: int = 0, **given: Any) -> list[Status]:
    """The statuses of a `fit` of three epochs and two batches, in seconds of a fake clock."""
    clock = iter(range(1000))
    monkeypatch.setattr(trainjob_progress, "rank_of", lambda model: rank)
    monkeypatch.setattr(fit_estimate, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    made = session_of("fit", model(), epochs=3)
    made.data, made.keras.batches = object(), given.pop("known", 2)
    reports = Reports()
    made.participants = [TrainJobProgress(made, reports)]  # type: ignore[arg-type]
    fit(made, epochs=given.pop("run", 3), batches=2, **given)
    return reports.statuses


def test_the_share_grows_from_step_to_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reported(monkeypatch, logs={"loss": 3.0, "words": "none"})
    # Begin, then two steps and the end of each epoch, then the end.
    steps = [status.done for status in found]
    assert steps == pytest.approx([0, *(n / 6 for n in (1, 2, 2, 3, 4, 4, 5, 6, 6)), 1])
    assert found[0].remaining is None and found[-1].remaining == 0
    # After the first step one second has passed, and five times as much remains.
    assert found[1].remaining == pytest.approx(5)
    assert found[1].metrics == {"loss": 3.0, "currentEpoch": 1, "totalEpochs": 3}
    assert found[-1].metrics["currentEpoch"] == 3


def test_an_unknown_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [status.done for status in reported(monkeypatch, known=None)]
    assert steps == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3, 1, 1])


def test_a_fit_that_stops_early_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [status.done for status in reported(monkeypatch, run=1)][-2:] == [1 / 3, 1.0]


def test_rank_0_alone_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(monkeypatch, rank=1) == []


def test_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainjob_progress, "is_ours", lambda strategy: strategy == "ours")
    monkeypatch.setattr(trainjob_progress, "reporter", Reports)
    assert TrainJobProgress.of(session_of("fit", model("another"))) is None
    assert TrainJobProgress.of(session_of("evaluate", model("ours"))) is None
    outer, inner = (session_of("fit", model("ours")) for _ in range(2))
    participant = TrainJobProgress.of(outer)
    assert participant is not None
    outer.participants = [participant]
    with session.running(outer):
        assert TrainJobProgress.of(inner) is None
    monkeypatch.setattr(trainjob_progress, "reporter", lambda: None)
    assert TrainJobProgress.of(outer) is None


def test_a_real_fit_posts_to_the_server(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    with status_server(tmp_path) as (server, received):
        reporter = Reporter(server, period=0.0)
        monkeypatch.setattr(trainjob_progress, "reporter", lambda: reporter)
        with tfdist.MirroredStrategy(["CPU:0"]).scope():
            trained = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            trained.compile("sgd", "mse", jit_compile=False)
        x = np.ones([24, 4], "f4")
        data = (x, x[:, :1])
        trained.fit(*data, batch_size=4, epochs=2, verbose=0, validation_data=data)
        reporter.close()
        wait_until(lambda: len(received.statuses) > 0, "a post")
    last = received.statuses[-1]
    assert last["progressPercentage"] == 100 and last["estimatedRemainingSeconds"] == 0
    names = [metric["name"] for metric in last["metrics"]]
    assert {"loss", "val_loss", "currentEpoch", "totalEpochs"} <= set(names)
