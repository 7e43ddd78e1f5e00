"""Asks all tasks of a job at once what they do; one that does not answer delays no other one."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

from tfdist.live.records import Answer, State
from tfdist.live.targets import Targets

_MAX_BYTES = 8 * 1024 * 1024  # of an answer
_MAX_THREADS = 32


class Sampler:
    """Asks the tasks of one job.

    Args:
      targets: the tasks.
      timeout: seconds in which a task must connect, and then answer.
    """

    def __init__(self, targets: Targets, timeout: float = 3.0) -> None:
        self._targets = targets
        self._timeout = timeout
        count = min(_MAX_THREADS, len(targets.addresses))
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="tfdist-sampler")

    def sample(self, events: float = 0.0) -> list[Answer]:
        """Returns each task's answer, in the order of the targets.

        Args:
          events: seconds of which the tasks tell their events and the loss; 0: neither.
        """

        def ask(target: tuple[str, str]) -> Answer:
            return self._ask(target[0], target[1], events)

        return list(self._pool.map(ask, self._targets.addresses.items()))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, name: str, address: str, events: float) -> Answer:
        try:
            state = self._request(address, events)
        except ConnectionRefusedError:
            problem = "does not listen: it has not begun, or has ended"
        except TimeoutError:
            problem = f"did not answer within {self._timeout:g} s"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
        except (ValueError, RecursionError) as error:
            problem = f"expected what a task of this release tells, received: {error}"
        else:
            return Answer(name, address, time.monotonic(), state)
        return Answer(name, address, time.monotonic(), problem=problem)

    def _request(self, address: str, events: float) -> State:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=self._timeout)
        try:
            connection.request(
                "GET",
                f"/state?events={events:g}",
                headers={"Authorization": f"Bearer {self._targets.token}"},
            )
            answer = connection.getresponse()
            if answer.status == http.client.UNAUTHORIZED:
                raise ValueError("a refusal: it has no secret, or another one than this command")
            if answer.status != http.client.OK:
                raise ValueError(f"status {answer.status}")
            body = answer.read(_MAX_BYTES + 1)
            if len(body) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
            return State.from_json(json.loads(body))
        finally:
            connection.close()
