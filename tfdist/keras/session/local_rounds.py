"""`LocalUpdateStrategy`: the epochs of `fit` end with a synchronization."""

from __future__ import annotations

from collections.abc import Callable

from tfdist._types import Logs
from tfdist.keras.elastic_local_steps import LocalElasticStep
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.preemption import Preemption
from tfdist.keras.session.session import FitSession, Session
from tfdist.keras.workers import local_updates_of


class LocalRounds(Participant[FitSession]):
    """Ends the round in which the steps of an epoch have ended.

    An evaluation within an epoch uses the workers' own variables.
    """

    @classmethod
    def of(cls, session: Session) -> LocalRounds | None:
        """Returns the participant, if it takes part."""
        if not isinstance(session, FitSession) or local_updates_of(session.strategy) is None:
            return None
        return cls(session)

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """Synchronizes the workers; the logs have the residuals of the rule, if it has some."""
        if of_validation:
            return make(logs)
        local = local_updates_of(self.session.strategy)
        assert local is not None
        step = getattr(self.session.model.train_function, "elastic_step", None)
        if isinstance(step, LocalElasticStep):
            step.end_round()
            preemption = self.session.participant(Preemption)
            if preemption is not None:
                preemption.after_round()
        else:
            local.synchronize()
        return {**make(logs), **local.residuals()}
