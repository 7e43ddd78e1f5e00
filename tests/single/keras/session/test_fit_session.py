"""The session of a call: which events participants get, when, and in which order."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from support.training.fit_sessions import FakeKeras, Noting, callbacks, fit, model, session_of
from tfdist.keras.session import calls, order, session
from tfdist.keras.session.session import FitSession

pytestmark = pytest.mark.timeout(60)


def noted(kind: str = "fit", names: str = "ab", **arguments: Any) -> tuple[Any, list[str]]:
    notes: list[str] = []
    made = session_of(kind, model("strategy"), **arguments)
    made.participants = [Noting(made, name, notes) for name in names]
    return made, notes


def test_events_of_a_fit() -> None:
    made, notes = noted(names="a")
    assert fit(made, epochs=2) == {"loss": 1.0, "a": True}
    epoch = [
        "a begin_epoch {0}",
        "a before steps",
        "a after_step 0",
        "a after_step 1",
        "a around_steps",
        "a results, validation: False",
        "a end_epoch, next {1}",
    ]
    assert notes == [
        "a begin_call",
        "a before_fit",
        "a begin_fit",
        *(line.format(0, 1) for line in epoch),
        *(line.format(1, 2) for line in epoch),
        "a end_fit",
        "a end_call",
    ]


def test_participants_begin_in_their_order_and_end_in_reverse() -> None:
    made, notes = noted()
    fit(made, batches=1)
    assert [line for line in notes if "call" in line or "begin_fit" in line] == [
        *("a begin_call", "b begin_call"),
        *("b begin_fit", "a begin_fit"),
        *("b end_call", "a end_call"),
    ]
    for event in ("before_fit", "begin_epoch 0", "after_step 0", "results", "end_fit"):
        assert [line[0] for line in notes if line[2:].startswith(event)] == ["a", "b"]


def test_a_lost_peer_is_told_innermost_first_and_raised() -> None:
    made, notes = noted()

    def fails(arguments: dict[str, Any]) -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        made.run(fails, (ConnectionError,))
    assert notes[2:] == ["b lost gone", "a lost gone"]


def test_another_error_is_no_lost_peer() -> None:
    made, notes = noted()
    cleaned: list[int] = []
    made.call_at_end(lambda: cleaned.append(1))

    def fails(arguments: dict[str, Any]) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        made.run(fails, (ConnectionError,))
    assert notes[2:] == [] and cleaned == [1]
    assert session.newest() is None


def test_counters() -> None:
    made = session_of("fit", model())
    assert (made.epoch, made.batch, made.last_batch, made.has_begun) == (0, 0, -1, False)
    made.callbacks = callbacks()
    made.begin_epoch(3)
    made.end_step(4, {})
    assert (made.epoch, made.last_batch, made.has_begun) == (3, 4, True)
    made.batch = 5
    made.end_epoch()
    assert (made.epoch, made.batch, made.last_batch) == (4, 0, 4)


def test_sessions_are_found_by_model_callbacks_and_data() -> None:
    outer, inner = (session_of("fit", model()) for _ in range(2))
    evaluation = session_of("evaluate", outer.model)
    outer.callbacks, outer.data = callbacks(), object()
    with session.running(outer), session.running(inner), session.running(evaluation):
        assert session.newest() is evaluation and session.newest_fit() is inner
        assert session.fits() == [outer, inner]
        assert session.fit_of(outer.model) is outer and session.fit_of(inner.model) is inner
        assert session.fit_of_callbacks(outer.callbacks) is outer
        assert session.fit_of_callbacks(callbacks()) is None
        assert session.fit_that_reads(outer.data) is outer
        assert session.fit_that_reads(object()) is None
    assert session.fits() == []


def test_each_thread_has_its_own_sessions() -> None:
    seen: list[Any] = []
    with session.running(session_of("fit", model())):
        thread = threading.Thread(target=lambda: seen.append(session.newest()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_data_is_opened_for_the_newest_call_by_all_participants() -> None:
    made, notes = noted()
    opened: list[str] = []
    with session.running(made):
        calls.open_data(FakeKeras(), object(), "strategy", opened.append)
    assert opened == ["strategy+a+b"]
    assert notes == ["a open_data for strategy", "b open_data for strategy+a"]


def test_data_of_another_strategy_is_none_of_the_call() -> None:
    made, notes = noted()
    opened: list[str] = []
    with session.running(made):
        calls.open_data(FakeKeras(), object(), "another", opened.append)
    assert opened == ["another"] and notes == []


def test_the_steps_of_a_call_end_innermost_first() -> None:
    made, notes = noted()
    with session.running(made), calls.steps_of(object(), contextlib.nullcontext()):
        notes.append("steps")
    assert notes == [
        "a before steps",
        "b before steps",
        "steps",
        "b around_steps",
        "a around_steps",
    ]


def results(model: Any) -> Any:
    return calls.results_of(model, {}, lambda logs: {"loss": 1.0})


def test_results_of_a_validation_are_those_of_the_fit() -> None:
    made, notes = noted(names="a")
    validation = session_of("evaluate", made.model, kwargs={"_use_cached_eval_dataset": True})
    with session.running(made):
        assert results(made.model) == {"loss": 1.0, "a": True}
        with session.running(validation):
            assert results(made.model) == {"loss": 1.0, "a": True}
    assert notes == ["a results, validation: False", "a results, validation: True"]


def test_an_evaluation_in_a_callback_has_results_of_its_own() -> None:
    made, notes = noted(names="a")
    with session.running(made), session.running(session_of("evaluate", made.model, kwargs={})):
        assert results(made.model) == {"loss": 1.0}
    with session.running(made):
        assert results(model()) == {"loss": 1.0}
    assert notes == []


class Keras:
    """A model whose `fit` notes its arguments."""

    distribute_strategy = None

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def fit(self, x, epochs=1, callbacks=None, **kwargs):
        """Notes its arguments."""
        found = session.newest()
        self.calls.append((x, epochs, kwargs))
        assert isinstance(found, FitSession) and found.arguments["epochs"] == epochs
        return "history"


def test_a_call_keeps_its_arguments_and_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_active", set())  # a fit of an earlier test leaves them
    keras = Keras()
    for args, kwargs in (((3,), {"epochs": 2}), ((3, 2), {}), ((), {"x": 3, "epochs": 2})):
        assert calls.call("fit", FakeKeras(), Keras.fit, keras, args, kwargs) == "history"
    assert keras.calls == [(3, 2, {})] * 3


def test_a_wrong_call_fails_as_the_function_does() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        calls.call("fit", FakeKeras(), Keras.fit, Keras(), (), {})
