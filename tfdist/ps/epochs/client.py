"""The worker's side of the rounds at the end of epochs; see `rounds`."""

from __future__ import annotations

import base64
import logging
import threading

from tfdist.config.cluster import Cluster
from tfdist.control import messages
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.waiting import Wait
from tfdist.ps.config import fingerprint
from tfdist.ps.epochs.metric_states import MetricStates
from tfdist.ps.epochs.rounds import Key, RoundResult
from tfdist.ps.epochs.service import PART

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
        text = f"{state.description()}\n{state.encoded()}"
        parts = [text[i : i + PART] for i in range(0, len(text), PART)]
        has_posted, wait = False, Wait(self._timeout, self._closed)
        while not wait.is_closed:
            try:
                if has_posted:
                    answer = self._call(self._request(key, stop, 0, 0, "", wait.poll()))
                else:
                    answer = self._post(key, stop, parts, wait)
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

    def _post(self, key: Key, stop: bool, parts: list[str], wait: Wait) -> dict:
        answer = {"status": "missing"}
        for i, part in enumerate(parts):
            poll = wait.poll() if i == len(parts) - 1 else 0.0
            answer = self._call(self._request(key, stop, i, len(parts), part, poll))
            if answer["status"] != "received":
                break
        return answer

    def _call(self, request: messages.EpochRequest) -> dict:
        return self._control.call(messages.EPOCH, request, request.wait, patient=True)

    def _request(
        self, key: Key, stop: bool, part: int, parts: int, data: str, wait: float
    ) -> messages.EpochRequest:
        return messages.EpochRequest(
            protocol=messages.PROTOCOL,
            fingerprint=fingerprint(self._cluster),
            process=self._process,
            rank=self._rank,
            fit=key.fit,
            epoch=key.epoch,
            phase=key.phase,
            stop=stop,
            part=part,
            parts=parts,
            data=data,
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
        None if content is None else MetricStates(state.fields, base64.b64decode(content)),
        tuple(answer["ranks"]),
        {int(rank): reason for rank, reason in answer["missing"].items()},
        answer["stop"],
    )
