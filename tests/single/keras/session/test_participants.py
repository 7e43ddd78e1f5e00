"""Each participant of a call by itself, without ranks; and the order of all."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.training.fit_sessions import FakeBackup, callbacks, fit, model, session_of
from tfdist.errors import Preempted
from tfdist.keras.session import (
    data_tasks,
    elastic,
    epoch_lengths,
    epoch_metrics,
    local_rounds,
    order,
    preemption,
    progress,
    server_data,
    session,
)
from tfdist.keras.session.participant import Participant
from tfdist.observe.metrics import fit_report
from tfdist.preemption.saved import NothingSavedError
from tfdist.ps.epochs.rounds import END, FIT_END, TRAINING, VALIDATION

pytestmark = pytest.mark.timeout(60)


def test_the_order_and_its_reasons() -> None:
    """A place is changed on purpose only: see the reasons."""
    names = [factory.__qualname__.removesuffix(".of") for factory, _ in order.ORDER]
    assert names == [
        "ElasticPart",
        "DataTasks",
        "Progress",
        "TrainJobProgress",
        "Preemption",
        "EpochMetrics",
        "LocalRounds",
        "ServerData",
        "EpochLengths",
        "_positions",
    ]
    assert all(reason for _, reason in order.ORDER)


def test_participants_take_part_once_they_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_active", set())
    feed = SimpleNamespace()
    made = session_of("evaluate", model(), x=feed)
    assert order.participants_of(made) == []
    order.activate(*order.OF_DATA_TASKS)
    (only,) = order.participants_of(made)
    assert isinstance(only, data_tasks.DataTasks)


class Feed:
    """A queue of data tasks that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin_fit(self, epochs: int) -> int:
        """Two epochs are over."""
        self.told.append(("fit", epochs))
        return 2

    def begin_steps(self, batches: int) -> None:
        """Notes."""
        self.told.append("steps")

    def train(self, batches: int) -> None:
        """Notes."""
        self.told.append(("trained", batches))

    def end_iteration(self) -> None:
        """Notes."""
        self.told.append("end")


def of_tasks(kind: str, **arguments: Any) -> tuple[Any, Feed]:
    feed = Feed()
    made = session_of(kind, model(), x=feed, callbacks=["user's"], **arguments)
    participant = data_tasks.DataTasks.of(made)
    assert participant is not None
    made.participants = [participant]
    return made, feed


@pytest.mark.parametrize(("given", "begins"), [(0, 2), (5, 5)])
def test_data_tasks_go_on_with_the_epoch_of_the_job(given: int, begins: int) -> None:
    made, feed = of_tasks("fit", epochs=9, initial_epoch=given)
    made.run(lambda arguments: None, ())
    assert made.arguments["initial_epoch"] == begins
    assert feed.told == [("fit", 9), "end"]


@pytest.mark.parametrize("kind", ["evaluate", "predict"])
def test_data_tasks_commit_steps_before_the_callbacks_of_the_user(kind: str) -> None:
    made, feed = of_tasks(kind)

    def steps(arguments: dict[str, Any]) -> None:
        commit, users = arguments["callbacks"]
        assert users == "user's"
        for name in ("train", "test", "predict"):
            getattr(commit, f"on_{name}_batch_end")(0)

    made.run(steps, ())
    assert feed.told == [("trained", 1), "end"]


def test_data_tasks_of_a_failed_call_are_not_given_back() -> None:
    made, feed = of_tasks("evaluate")
    with pytest.raises(ValueError, match="fails"):
        made.run(lambda arguments: (_ for _ in ()).throw(ValueError("fails")), ())
    assert feed.told == []


def test_the_batches_of_data_tasks_are_not_counted() -> None:
    made, _ = of_tasks("evaluate")
    made.keras.batches = 7
    with made.participants[0].around_steps(contextlib.nullcontext(), object()):
        assert made.keras.batches is None


def test_an_epoch_of_a_data_service_does_not_decide_the_length_of_the_next() -> None:
    made = session_of("fit", model())
    participant = epoch_lengths.EpochLengths(made)
    with participant.around_steps(contextlib.nullcontext(), object()):
        made.keras.batches = 7
    assert made.keras.batches is None
    assert epoch_lengths.EpochLengths.of(made) is None  # of another strategy


class Extended:
    """A strategy of parameter servers that notes how data is distributed."""

    def __init__(self) -> None:
        self.settings: list[bool] = []

    @contextlib.contextmanager
    def input(self, shared: bool, prepare: Any = None) -> Any:
        """Notes."""
        self.settings.append(shared)
        yield


def test_servers_share_training_data_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_data, "with_prefetch", lambda model: None)
    strategy = SimpleNamespace(extended=Extended())
    made = session_of("fit", model(strategy))
    participant = server_data.ServerData(made)

    def make(_: Any) -> None:
        made.data = "training"

    participant.open_data("training", strategy, make)
    participant.open_data("validation", strategy, lambda _: None)
    evaluation = server_data.ServerData(session_of("evaluate", model(strategy)))
    evaluation.open_data("data", strategy, lambda _: None)
    assert strategy.extended.settings == [True, False, False]
    assert made.keras.counted == ["training"]


class Training:
    """An agreement that stops after a number of steps."""

    def __init__(self, steps: int | None, is_to_end: bool = False) -> None:
        self.left = steps
        self.is_to_end = is_to_end
        self.stopped: list[str] = []

    def ends_after_step(self) -> bool:
        """Counts a step."""
        if self.left is not None:
            self.left -= 1
        return self.left == 0

    def stop(self, where: str, save: Any) -> None:
        """Saves, and ends."""
        try:
            self.stopped.append(f"{where}: {save()}")
        except NothingSavedError as why:
            self.stopped.append(f"{where}: nothing was saved: {why}")
        raise Preempted

    def lost_peers(self, error: Exception) -> None:
        """Ends."""
        raise Preempted from error


def preempted(steps: int | None, is_to_end: bool = False) -> tuple[Any, Training]:
    made = session_of("fit", model())
    participant = preemption.Preemption(made)
    training = participant._training = Training(steps, is_to_end)  # type: ignore[assignment]
    made.participants = [participant]
    return made, training


def test_preemption_saves_after_the_step_that_is_the_last() -> None:
    made, training = preempted(4)
    backup = FakeBackup()
    with pytest.raises(Preempted):
        fit(made, epochs=3, batches=3, given=callbacks(backup))
    assert training.stopped == ["in epoch 2 after batch 1: saved to backups"]
    assert made.keras.saved == [(backup, 1, 0)]


def test_preemption_at_the_end_of_fit_saves_the_beginning_of_the_next_epoch() -> None:
    made, training = preempted(None, is_to_end=True)
    backup = FakeBackup()
    with pytest.raises(Preempted):
        fit(made, epochs=2, batches=3, given=callbacks(backup))
    assert training.stopped == ["at the end of fit after batch 3: saved to backups"]
    assert made.keras.saved == [(backup, 2, None)]


def test_preemption_without_a_place_to_save_lets_fit_end() -> None:
    made, training = preempted(None, is_to_end=True)
    assert fit(made) == {"loss": 1.0}
    assert training.stopped == []


def test_preemption_says_that_nothing_was_saved() -> None:
    made, training = preempted(1)
    with pytest.raises(Preempted):
        fit(made)
    assert "nothing was saved: fit has no BackupAndRestore callback" in training.stopped[0]


@pytest.mark.parametrize(("is_to_end", "expected"), [(True, Preempted), (False, ConnectionError)])
def test_a_lost_peer_ends_the_program_only_after_a_notice(is_to_end: bool, expected: type) -> None:
    made, _ = preempted(None, is_to_end)
    with pytest.raises(expected):
        made.run(lambda arguments: (_ for _ in ()).throw(ConnectionError), (ConnectionError,))


def test_preemption_and_progress_are_of_the_outermost_fit(monkeypatch: Any) -> None:
    for module in (preemption, progress):
        monkeypatch.setattr(module, "is_ours", lambda strategy: strategy == "ours")
    monkeypatch.setattr(preemption, "_has_unknown_peers", lambda strategy: False)
    for kind in (preemption.Preemption, progress.Progress):
        monkeypatch.setattr(kind, "__init__", lambda self, session: None)
        outer, inner = (session_of("fit", model("ours")) for _ in range(2))
        assert kind.of(session_of("fit", model("another"))) is None
        assert kind.of(session_of("evaluate", model("ours"))) is None
        participant = kind.of(outer)
        assert participant is not None
        outer.participants = [participant]
        with session.running(outer):
            assert kind.of(inner) is None


def test_progress_notes_logs_while_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    report = fit_report.FitReport()
    process = SimpleNamespace(serves_metrics=True, report_stragglers=lambda: told.append(1))
    monkeypatch.setattr(progress.process, "current", process)
    monkeypatch.setattr(fit_report, "current", report)
    monkeypatch.setattr(fit_report, "PERIOD", 0.0)
    made = session_of("fit", model(), epochs=5)
    made.data, made.keras.batches = object(), 4
    states: list[Any] = []

    class Looks(Participant[Any]):
        def after_step(self, logs: Any) -> None:
            states.append(report.state)

        def end_epoch(self) -> None:
            states.append(report.state)

    made.participants = [progress.Progress(made), Looks(made)]
    fit(made, epochs=2, batches=4, logs={"loss": 3.0})
    places = [(one.epoch, one.batch, one.batches, one.done) for one in states]
    assert places == [
        *((1, batch, 4, pytest.approx(batch / 20)) for batch in (1, 2, 3, 4)),
        (2, 0, 4, pytest.approx(0.2)),
        *((2, batch, 4, pytest.approx(0.2 + batch / 20)) for batch in (1, 2, 3, 4)),
        (3, 0, 4, pytest.approx(0.4)),
    ]
    assert all(one.remaining > 0 and not one.has_ended and one.epochs == 5 for one in states)
    # It has stopped early.
    assert report.state is not None and (report.state.epoch, report.state.has_ended) == (2, True)
    made.participants[0].results({"val_loss": 2.0}, dict, of_validation=True)
    assert report.curves.points() == {"loss": [(1, 3.0), (8, 3.0)], "val_loss": [(8, 2.0)]}
    process.serves_metrics = False
    fit(made, batches=2)
    assert report.steps == 8 and told == [1, 1]


class Member:
    """A worker of parameter servers, whose rounds add another worker's numbers to its own."""

    def __init__(self, stops: bool = False) -> None:
        self.fits = 6
        self.rounds: list[tuple[int, int, int, bool]] = []
        self.flushes = 0
        self.epochs = self
        self._stops = stops

    def flush(self) -> None:
        """Notes."""
        self.flushes += 1

    def join_round(self, key: Any, state: Any, stop: bool) -> Any:
        """Returns a state with each number doubled."""
        self.rounds.append((key.fit, key.epoch, key.phase, stop))
        doubled = SimpleNamespace(arrays=lambda: [2 * array for array in state.arrays()])
        return SimpleNamespace(state=doubled, stop=self._stops, missing={})


class Sum(np.ndarray):
    """A variable of a metric."""

    aggregation = "sum"

    def assign(self, value: np.ndarray) -> None:
        """Sets the value."""
        self[...] = value


def of_workers(member: Member) -> tuple[Any, Sum]:
    total = np.array([3.0], np.float32).view(Sum)
    trained = model()
    trained.metrics = [SimpleNamespace(variables=[total])]
    made = session_of("fit", trained, callbacks=[])
    made.participants = [epoch_metrics.EpochMetrics(made, member)]
    return made, total


def test_the_metrics_of_an_epoch_are_those_of_all_workers() -> None:
    member = Member()
    made, total = of_workers(member)

    def train(arguments: dict[str, Any]) -> Any:
        (end_of_epoch,) = arguments["callbacks"]
        made.begin_fit(callbacks(), lambda: None)
        made.begin_epoch(1)
        logs = made.results(
            {"other": 1.0}, lambda logs: {"sum": float(total[0])}, of_validation=False
        )
        assert logs == {"sum": 6.0}
        logs = made.results({}, lambda logs: {"sum": float(total[0])}, of_validation=True)
        made.end_epoch()
        end_of_epoch.on_epoch_end(1)

    made.model.get_metrics_result = lambda: {"sum": float(total[0])}
    made.run(train, ())
    assert [phase for _, _, phase, _ in member.rounds] == [TRAINING, VALIDATION, END, FIT_END]
    assert {(fit_number, epoch) for fit_number, epoch, _, _ in member.rounds} == {(7, 1)}
    assert member.flushes == 1 and not made.model.stop_training


def test_one_worker_that_stops_stops_all() -> None:
    made, _ = of_workers(Member(stops=True))
    made.begin_fit(callbacks(), lambda: None)
    made.participants[0].meet_after_callbacks()
    assert made.model.stop_training


def test_a_fit_that_ends_before_its_first_epoch_ends_alone() -> None:
    member = Member()
    made, _ = of_workers(member)
    made.run(lambda arguments: None, ())
    assert member.rounds == []


def test_an_epoch_of_local_updates_ends_with_a_synchronization(monkeypatch: Any) -> None:
    calls: list[str] = []
    local = SimpleNamespace(
        synchronize=lambda: calls.append("synchronize"), residuals=lambda: {"residual": 0.5}
    )
    monkeypatch.setattr(local_rounds, "local_updates_of", lambda strategy: local)
    made = session_of("fit", model(train_function=object()))
    participant = local_rounds.LocalRounds.of(made)
    assert participant is not None
    made.participants = [participant]
    assert made.results({}, lambda logs: {"loss": 1.0}, of_validation=True) == {"loss": 1.0}
    assert calls == []
    logs = made.results({}, lambda logs: {"loss": float(len(calls))}, of_validation=False)
    assert logs == {"loss": 1.0, "residual": 0.5}


def test_elastic_data_is_read_whole() -> None:
    made = session_of("evaluate", model())
    opened: list[Any] = []
    elastic.ElasticPart(made, None).open_data(object(), "strategy", opened.append)  # type: ignore[arg-type]
    assert [type(each) for each in opened] == [elastic.WholeBatches]
    with pytest.raises(ValueError, match="received a dataset that is distributed already"):
        elastic.WholeBatches.check(object())
