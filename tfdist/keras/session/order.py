"""The participants of a call, in their order, each with the reason for its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfdist.keras.session.data_tasks import DataTasks
from tfdist.keras.session.elastic import ElasticPart
from tfdist.keras.session.epoch_lengths import EpochLengths
from tfdist.keras.session.epoch_metrics import EpochMetrics
from tfdist.keras.session.local_rounds import LocalRounds
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.preemption import Preemption
from tfdist.keras.session.progress import Progress
from tfdist.keras.session.server_data import ServerData
from tfdist.keras.session.session import Session
from tfdist.keras.session.trainjob_progress import TrainJobProgress

# Returns a participant of a session, or None if it does not take part.
Factory = Callable[[Session], Participant | None]


def _positions(session: Session) -> Participant | None:
    return session.keras.positions(session)


ORDER: Sequence[tuple[Factory, str]] = (
    (
        ElasticPart.of,
        "all others see whole batches; the members meet after all have ended an epoch",
    ),
    (DataTasks.of, "its callback commits before the user's callbacks save"),
    (Progress.of, "before the program may be stopped"),
    (TrainJobProgress.of, "before the program may be stopped"),
    (Preemption.of, "handles what the participants below it lose"),
    (EpochMetrics.of, "combines metrics after the workers' variables have met"),
    (LocalRounds.of, "the metrics of an epoch are read after its last round"),
    (ServerData.of, "decides how data is distributed before its openings are counted"),
    (EpochLengths.of, "restores what Keras has counted; the position below counts for itself"),
    (_positions, "the next batch: the others ask for it, and it asks none of them"),
)


ALL = tuple(factory for factory, _ in ORDER)
OF_DATA_TASKS = (DataTasks.of,)
_active: set[Factory] = set()


def activate(*factories: Factory) -> None:
    """Lets participants take part from now on; each belongs to `ALL`."""
    _active.update(factories)


def participants_of(session: Session) -> list[Participant]:
    """Returns the participants of a session, in their order."""
    found = [factory(session) for factory in ALL if factory in _active]
    return [one for one in found if one is not None]
