"""The worker's side of the rounds at the end of epochs; see `rounds`."""

from __future__ import annotations

import logging
import threading

from tfdist.config.cluster import Cluster
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.waiting import Wait
from tfdist.ps.config import fingerprint
from tfdist.ps.epochs.messages import EPOCH, EpochRequest
from tfdist.ps.epochs.metric_states import MetricStates
from tfdist.ps.epochs.rounds import Key, RoundResult

_log = logging.getLogger("tfdist.ps")


class EpochClient:
    """One worker's connection to the rounds.

    Args:
      cluster: the job.
      process: this process's identity among the workers.
      control: the parameter server that holds the rounds.
      timeout: seconds to wait for a server that does not answer.
      closed: is set when this worker leaves.
    """

    def __init__(
        self,
        cluster: Cluster,
        process: str,
        control: ControlClient,
        timeout: float,
        closed: threading.Event,
    ) -> None:
        assert cluster.rank is not None
        self._cluster = cluster
        self._rank = cluster.rank
        self._process = process
        self._control = control
        self._timeout = timeout
        self._closed = closed

    def join_round(self, key: Key, state: MetricStates, stop: bool = False) -> RoundResult | None:
        """Posts a state and waits for the round to end.

        Args:
          key: the round.
          state: this worker's state.
          stop: whether all workers should stop training.

        Returns:
          The round's answer; `None`, with a warning in the log, if there is none.
        """
        has_posted, wait = False, Wait(self._timeout, self._closed)
        while not wait.is_closed:
            try:
                posted = None if has_posted else state
                request = self._request(key, stop, posted, wait.poll())
                answer = self._control.call(EPOCH, request, request.wait, patient=True)
            except UnreachableError as error:
                if wait.is_over:
                    self._warn(key, str(error))
                    return None
                wait.pause()
                has_posted = False
                continue
            wait.heard()
            has_posted = answer["status"] == "waiting"
            if answer["status"] == "over":
                return _decoded(answer, state)
            if answer["status"] == "differs":
                self._warn(key, answer["reason"])
                return None
            if answer["status"] == "missing":  # the server was started again
                wait.pause()
        self._warn(key, "this worker is leaving the job")
        return None

    def _request(
        self, key: Key, stop: bool, state: MetricStates | None, wait: float
    ) -> EpochRequest:
        return EpochRequest(
            fingerprint=fingerprint(self._cluster),
            process=self._process,
            rank=self._rank,
            fit=key.fit,
            epoch=key.epoch,
            phase=key.phase,
            stop=stop,
            state=state,
            wait=wait,
        )

    def _warn(self, key: Key, reason: str) -> None:
        _log.warning(
            "%s: the metrics of epoch %d are this worker's own: %s",
            self._cluster.task_name,
            key.epoch + 1,
            reason,
        )


def _decoded(answer: dict, state: MetricStates) -> RoundResult:
    content = answer["content"]
    return RoundResult(
        None if content is None else MetricStates(state.fields, content),
        tuple(answer["ranks"]),
        {int(rank): reason for rank, reason in answer["missing"].items()},
        answer["stop"],
    )
