"""The status of a TrainJob's trainer, as Kubeflow Trainer takes it.

The limits are the limits of `status.trainerStatus` in the definition of a TrainJob. The server
refuses the whole status if one number or name exceeds them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping

_MAX_METRICS = 256
_MAX_TEXT = 64
_MAX_SECONDS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Status:
    """The progress of a training.

    Args:
      done: the trained share of the training, 0 to 1.
      remaining: estimated seconds until its end; None if they are not known.
      metrics: values by their names.
      at: when they were observed.
    """

    done: float
    remaining: float | None
    metrics: Mapping[str, float]
    at: datetime.datetime = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.timezone.utc)
    )

    def request(self) -> bytes:
        """Returns the body of the request, in JSON."""
        status: dict[str, object] = {"progressPercentage": int(100 * min(max(self.done, 0.0), 1.0))}
        if self.remaining is not None:
            seconds = min(max(self.remaining, 0.0), _MAX_SECONDS)
            status["estimatedRemainingSeconds"] = int(seconds)
        status["metrics"] = [
            {"name": name[:_MAX_TEXT], "value": f"{value:.6g}"}
            for name, value in list(self.metrics.items())[:_MAX_METRICS]
            if name
        ]
        status["lastUpdatedTime"] = self.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return json.dumps({"trainerStatus": status}).encode()
