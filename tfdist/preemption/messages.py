"""The request with which a job agrees on its last step; see `stop_board`."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class StopRequest:
    """A rank proposes the last step of the job, or asks for it.

    `last_step` is the proposal and 0 in a question; `stored` is the step that this rank has stored,
    or 0; `noticed` says that this rank was told to end.
    """

    fingerprint: str
    rank: int
    last_step: int
    stored: int
    noticed: bool
    wait: float


STOPS = Service("Stops", 1, "rank 0 of its job, or a parameter server")
STOP = STOPS.method(StopRequest)
