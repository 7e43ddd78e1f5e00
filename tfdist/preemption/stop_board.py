"""The agreement on the last step of a job that is told to end. The hub's state, no networking.

A worker cannot stop by itself: the others would wait for its gradients. So the workers agree on
their last step, at no cost before that. Rank 0 is the hub, or parameter server 0 of a job that has
them. Every other worker always has a question open there:

```
  rank 1                  hub                  rank 2
    |                      |<--- last step? -----|       a long poll
    | SIGTERM              |                     |
    | ends step 7          |                     |
    |--- last step: 8 ---->|---- it is 8 ------->|
    |                      |<--- stored 8 -------|
    |<-- all have 8 -------|                     |
    | makes step 8         |                     |
    | stops                                      | stops
```

Step 8 needs rank 1, which makes it only when all have stored its number. So no worker ends step 8
without knowing that it is the last. Where a worker can be a step ahead of another one, as with
synchronous parameter servers, the proposal is 9. Several workers may propose: they have all ended
step 7, or one of them would know of the other's proposal. The first proposal counts.
"""

from __future__ import annotations

from tfdist.control import callers
from tfdist.control.held_calls import ClientContext, HeldCalls
from tfdist.preemption.messages import StopRequest


class StopBoard:
    """Takes proposals of the last step, and tells all workers.

    Args:
      ranks: the number of workers.
      fingerprint: the job's, which every caller must know.
    """

    def __init__(self, ranks: int, fingerprint: str) -> None:
        self._ranks = ranks
        self._fingerprint = fingerprint
        self._calls = HeldCalls()
        self._closed = False
        self._last_step = 0
        self._told = -1
        self._stored: set[int] = set()
        self._noticed = False

    @property
    def noticed(self) -> bool:
        """Whether any worker was told to end; it may still end as usual."""
        return self._noticed

    @property
    def stops(self) -> bool:
        """Whether the workers stop because one was told to end."""
        return self._last_step > 0

    def answer(self, request: StopRequest, context: ClientContext) -> dict[str, object]:
        """Answers a worker's request.

        A question is held until there is a last step, a proposal until all have stored it, each at
        most for the request's `wait`.

        Returns:
          {"status": "stop", "last_step", "told": the first rank that was told to end, or -1 if its
          request has not come, "missing": [ranks that have not stored the step]},
          {"status": "waiting"}, {"status": "refused", "reason"} or {"status": "closed"}.
        """
        reason = self._reason_to_refuse(request)
        if reason:
            return {"status": "refused", "reason": reason}
        with self._calls.lock:
            self._noticed = self._noticed or request.noticed or request.last_step > 0
            if request.noticed and self._told < 0:
                self._told = request.rank
            if request.last_step and not self._last_step:
                self._last_step = request.last_step
                self._calls.wake_all()
            if request.stored and request.stored == self._last_step:
                self._stored.add(request.rank)
                if len(self._stored) == self._ranks:
                    self._calls.wake_all()
            self._calls.hold(
                context, request.wait, lambda: self._closed or self._is_answered(request)
            )
            if self._last_step:
                missing = sorted(set(range(self._ranks)) - self._stored)
                return {
                    "status": "stop",
                    "last_step": self._last_step,
                    "told": self._told,
                    "missing": missing,
                }
            return {"status": "closed" if self._closed else "waiting"}

    def close(self) -> None:
        """Releases all waiting calls."""
        with self._calls.lock:
            self._closed = True
            self._calls.wake_all()

    def _is_answered(self, request: StopRequest) -> bool:
        if request.last_step and request.stored:
            return len(self._stored) == self._ranks
        return self._last_step > 0

    def _reason_to_refuse(self, request: StopRequest) -> str | None:
        reason = callers.reason_to_refuse(request, self._fingerprint, self._ranks)
        if reason:
            return reason
        if request.last_step < 0 or request.stored < 0:
            return f"expected steps of at least 0, received {request.last_step}, {request.stored}"
        return None
