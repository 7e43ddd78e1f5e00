"""A worker that trains an `Estimator` with `ParameterServerStrategy`."""

from __future__ import annotations


class ParameterServerWorker:
    pass
