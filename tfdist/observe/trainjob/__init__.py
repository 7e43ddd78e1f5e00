"""The status of a Kubeflow TrainJob: its content, and the thread that posts it."""

from __future__ import annotations

from tfdist.observe.trainjob.reporter import Reporter
from tfdist.observe.trainjob.status import Status

__all__ = ["Reporter", "Status"]
