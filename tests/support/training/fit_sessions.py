"""Sessions of a Keras without data, models or workers, for tests of participants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from tfdist.keras.session import calls
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session


class FakeBackup:
    """Stands for `BackupAndRestore`."""

    def __init__(self, backup_dir: str = "backups") -> None:
        self.backup_dir = backup_dir

    def set_model(self, model: Any) -> None:
        """Takes the model."""
        self.model = model


class FakeKeras:
    """An `Adapter` that notes what it is asked to do."""

    backup_type = FakeBackup
    checkpoint_type = type("FakeCheckpoint", (), {})
    history_type = type("FakeHistory", (), {})
    of_each_worker = ()

    def __init__(self) -> None:
        self.saved: list[tuple[Any, int, int | None]] = []
        self.batches: int | None = None
        self.counted: list[Any] = []

    def positions(self, session: Any) -> None:
        """Takes no part."""

    def feed_of(self, x: Any) -> Any:
        """The data is the feed itself."""
        return x

    def count_own_batches(self, data: Any, extended: Any) -> None:
        """Notes that it was asked."""
        self.counted.append(data)

    def forget_batches(self, data: Any) -> None:
        """Forgets the number."""
        self.batches = None

    def known_batches(self, data: Any) -> int | None:
        """The number."""
        return self.batches

    def expect_batches(self, data: Any, batches: int | None) -> None:
        """Sets the number."""
        self.batches = batches

    def save(self, backup: Any, epoch: int, batch: int | None) -> None:
        """Notes a save."""
        self.saved.append((backup, epoch, batch))

    def save_here(self, backup: Any, positions: Any) -> None:
        """Takes no part."""

    def restore(self, backup: Any, positions: Any) -> None:
        """Takes no part."""


class FakeModel(SimpleNamespace):
    """Stands for a model; a plain namespace cannot be the key of a weak dictionary."""

    __hash__ = object.__hash__


def model(strategy: Any = None, **attributes: Any) -> FakeModel:
    """A model of a strategy."""
    fields = {"distribute_strategy": strategy, "stop_training": False, "name": "model"}
    return FakeModel(**fields, steps_per_execution=1, metrics=[], **attributes)


def session_of(kind: str, model: Any, **arguments: Any) -> Any:
    """A session that has not begun, without participants."""
    kind_of_session = FitSession if kind == "fit" else Session
    return kind_of_session(kind, FakeKeras(), model, model.distribute_strategy, arguments)


def callbacks(*each: Any) -> SimpleNamespace:
    """A `CallbackList`."""
    return SimpleNamespace(callbacks=list(each))


def fit(
    session: FitSession, epochs: int = 1, batches: int = 2, given: Any = None, logs: Any = None
) -> Any:
    """Makes the calls of a `fit` without validation; returns the logs of the last epoch.

    The data is not opened: `open_data` is not called.
    """
    given = callbacks() if given is None else given
    made = {"loss": 1.0} if logs is None else logs

    def train(arguments: dict[str, Any]) -> Any:
        results = None
        session.begin_fit(given, lambda: None)
        for epoch in range(epochs):
            session.begin_epoch(epoch)
            with calls.steps_of(object(), contextlib.nullcontext()):
                for batch in range(batches):
                    session.batch = batch + 1
                    session.end_step(batch, made)
            results = session.results(made, dict, of_validation=False)
            session.end_epoch()
        session.end_fit()
        return results

    return session.run(train, (ConnectionError,))


class Noting(Participant[Any]):
    """Notes each call of its protocol in a list.

    Args:
      session: the session.
      name: of this participant in the notes.
      notes: the list.
    """

    def __init__(self, session: Any, name: str, notes: list[str]) -> None:
        super().__init__(session)
        self._name, self._notes = name, notes

    def _note(self, what: str) -> None:
        self._notes.append(f"{self._name} {what}")

    def begin_call(self) -> None:
        """Notes."""
        self._note("begin_call")

    def open_data(self, data: Any, strategy: Any, make: Any) -> None:
        """Notes."""
        self._note(f"open_data for {strategy}")
        make(f"{strategy}+{self._name}")

    def before_fit(self) -> None:
        """Notes."""
        self._note("before_fit")

    def begin_fit(self) -> None:
        """Notes."""
        self._note("begin_fit")

    def begin_epoch(self) -> None:
        """Notes."""
        self._note(f"begin_epoch {self.session.epoch}")

    def after_step(self, logs: Any) -> None:
        """Notes."""
        self._note(f"after_step {self.session.last_batch}")

    def around_steps(self, steps: Any, data: Any) -> Any:
        """Notes."""
        return self._around(steps)

    @contextlib.contextmanager
    def _around(self, steps: Any) -> Iterator[None]:
        self._note("before steps")
        with steps:
            yield
        self._note("around_steps")

    def results(self, logs: Any, make: Any, *, of_validation: bool) -> Any:
        """Notes."""
        self._note(f"results, validation: {of_validation}")
        return {**make(logs), self._name: True}

    def after_validation_step(self, logs: Any) -> None:
        """Notes."""
        self._note("after_validation_step")

    def end_epoch(self) -> None:
        """Notes."""
        self._note(f"end_epoch, next {self.session.epoch}")

    def end_fit(self) -> None:
        """Notes."""
        self._note("end_fit")

    def end_call(self) -> None:
        """Notes."""
        self._note("end_call")

    def lost(self, error: Exception) -> None:
        """Notes."""
        self._note(f"lost {error}")
