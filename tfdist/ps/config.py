"""The configuration that all tasks of a parameter-server job must agree on."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeGuard

from tfdist.config.cluster import Cluster
from tfdist.control import callers
from tfdist.errors import ClusterConfigError

MODES = ("async", "sync", "ssp")
COMPENSATIONS = ("dc-asgd", "adadelay", "adaptive-revision")
CLIPS = ("sum", "replica")
DURABILITIES = ("warn", "refuse")
_MAX_STALENESS = 2**31 - 1
_MAX_TRACE_EVENTS = 10**6


@dataclasses.dataclass(frozen=True)
class PsConfig:
    """How servers apply the workers' pushes, and where they keep snapshots.

    Args:
      workers: the number of tasks that train.
      mode: "async", "sync" or "ssp".
      staleness: with "ssp", the maximum number of steps that a worker may lead the slowest by.
      num_aggregate: with "sync", the number of workers' gradients in a step.
      compensation: `None`, "dc-asgd", "adadelay" or "adaptive-revision", with "async" or "ssp".
      compensation_lambda: the strength of "dc-asgd".
      hogwild: update without locks, in place.
      n_push: with "async", the number of steps from one push of a worker to the next.
      n_fetch: with "async", the number of steps from one fetch to the next; a multiple of `n_push`.
      worker_timeout: seconds that workers wait for a worker that has become silent.
      start_timeout: the same, for a worker that has never connected.
      epoch_timeout: seconds that workers wait for each other at the end of an epoch; 0: not at all.
      checkpoint_dir: the directory of the servers' snapshots; `None` keeps none.
      durability: "warn" or "refuse": the servers' reaction while they cannot write there.
      clip: "sum" or "replica": the gradients that optimizers clip, equal for all workers.
      trace_events: the number of latest events that each server remembers.
      elastic: with "sync", the members of an elastic job decide about its steps; `workers` is the
        number of tasks that may be members.

    Raises:
      ClusterConfigError: an argument is invalid; names the expected and the received value.
    """

    workers: int
    mode: str = "async"
    staleness: int = 0
    num_aggregate: int = 0
    compensation: str | None = None
    compensation_lambda: float = 0.04
    hogwild: bool = False
    n_push: int = 1
    n_fetch: int = 1
    worker_timeout: float = 60.0
    start_timeout: float = 300.0
    epoch_timeout: float = 60.0
    checkpoint_dir: str | None = None
    durability: str = "warn"
    clip: str = "sum"
    trace_events: int = 0
    elastic: bool = False

    @classmethod
    def make(
        cls,
        workers: int,
        mode: str = "async",
        staleness: float | None = None,
        num_aggregate: int | None = None,
        **others: Any,
    ) -> PsConfig:
        """Checks a strategy's arguments. A staleness of 0 is "sync", an infinite one "async"."""
        _expect(mode in MODES, "mode", f"one of {', '.join(MODES)}", mode)
        steps = 0
        if mode == "ssp":
            whole = _is_number(staleness) and float(staleness).is_integer() and staleness >= 0
            _expect(
                whole or staleness == math.inf,
                "staleness",
                "with mode='ssp' a whole number of steps, or math.inf",
                staleness,
            )
            assert staleness is not None
            mode = {0: "sync", math.inf: "async"}.get(staleness, "ssp")
            steps = int(staleness) if mode == "ssp" else 0
        else:
            _expect(staleness is None, "staleness", f"none with mode={mode!r}", staleness)
        if num_aggregate is not None:
            _expect(mode == "sync", "num_aggregate", "none unless mode='sync'", num_aggregate)
            _expect(
                isinstance(num_aggregate, int) and 1 <= num_aggregate <= workers,
                "num_aggregate",
                f"1 to {workers}, the number of workers",
                num_aggregate,
            )
        return cls(
            workers,
            mode,
            steps,
            (num_aggregate or workers) if mode == "sync" else 0,
            **others,
        )

    def __post_init__(self) -> None:
        _expect(_is_whole(self.workers) and self.workers >= 1, "workers", "1 or more", self.workers)
        _expect(self.mode in MODES, "mode", f"one of {', '.join(MODES)}", self.mode)
        for name, maximum in (("staleness", _MAX_STALENESS), ("num_aggregate", self.workers)):
            value = getattr(self, name)
            _expect(_is_whole(value) and 0 <= value <= maximum, name, f"0 to {maximum}", value)
        sync = self.num_aggregate >= 1 if self.mode == "sync" else self.num_aggregate == 0
        _expect(sync, "num_aggregate", "1 or more with mode='sync', else 0", self.num_aggregate)
        _expect(
            _is_whole(self.trace_events) and 0 <= self.trace_events <= _MAX_TRACE_EVENTS,
            "trace_events",
            f"0 to {_MAX_TRACE_EVENTS}",
            self.trace_events,
        )
        _expect(isinstance(self.hogwild, bool), "hogwild", "True or False", self.hogwild)
        _expect(
            self.elastic is False or (self.elastic is True and self.mode == "sync"),
            "elastic",
            "False unless mode='sync'",
            self.elastic,
        )
        root = self.checkpoint_dir
        _expect(isinstance(root, str | None), "checkpoint_dir", "a path or None", root)
        _expect(
            self.durability in DURABILITIES,
            "durability",
            f"one of {', '.join(DURABILITIES)}",
            self.durability,
        )
        _expect(
            self.durability == "warn" or root is not None,
            "durability",
            "'warn' without a checkpoint_dir",
            self.durability,
        )
        _expect(self.clip in CLIPS, "clip", f"one of {', '.join(CLIPS)}", self.clip)
        delayed = self.mode != "sync"
        _expect(
            self.compensation is None or (self.compensation in COMPENSATIONS and delayed),
            "compensation",
            f"None or, with mode='async' or 'ssp', one of {', '.join(COMPENSATIONS)}",
            self.compensation,
        )
        _expect(not self.hogwild or delayed, "hogwild", "False with mode='sync'", self.hogwild)
        _expect(
            not self.hogwild or self.compensation not in ("dc-asgd", "adaptive-revision"),
            "hogwild",
            f"False with compensation={self.compensation!r}, which needs what a worker has pulled",
            self.hogwild,
        )
        for name in ("n_push", "n_fetch"):
            value = getattr(self, name)
            _expect(_is_whole(value) and value >= 1, name, "a number of steps, 1 or more", value)
            _expect(value == 1 or self.mode == "async", name, "1 unless mode='async'", value)
        _expect(
            self.n_fetch % self.n_push == 0,
            "n_fetch",
            f"a multiple of n_push={self.n_push}: a worker pushes before it fetches",
            self.n_fetch,
        )
        for name in ("compensation_lambda", "worker_timeout", "start_timeout"):
            value = getattr(self, name)
            _expect(_is_number(value) and 0 < value < math.inf, name, "a positive number", value)
        _expect(
            _is_number(self.epoch_timeout) and 0 <= self.epoch_timeout < math.inf,
            "epoch_timeout",
            "a number of seconds, 0 or more",
            self.epoch_timeout,
        )

    def text(self) -> str:
        """Returns JSON from which `parse` makes an equal configuration."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> PsConfig:
        """Returns the configuration in `text`.

        Raises:
          ClusterConfigError: the text is not from `text()` of this version of tfdist.
        """
        try:
            fields = json.loads(text)
            expected = {field.name for field in dataclasses.fields(cls)}
            if not isinstance(fields, dict) or set(fields) != expected:
                raise ValueError(f"expected the fields {', '.join(sorted(expected))}")
            return cls(**fields)
        # RecursionError: thousands of nested brackets.
        except (TypeError, ValueError, RecursionError) as error:
            raise ClusterConfigError(
                f"expected a parameter-server configuration, received {text[:200]!r}: {error}"
            ) from None

    def differences(self, other: PsConfig) -> str:
        """Returns the differences, such as "mode 'sync' / 'async'"; empty if there are none."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return ", ".join(f"{k} {mine[k]!r} / {theirs[k]!r}" for k in mine if mine[k] != theirs[k])


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _expect(fits: bool, name: str, expected: str, received: object) -> None:
    if not fits:
        raise ClusterConfigError(
            f"ParameterServerStrategy: expected {name} to be {expected}, received {received!r}"
        )


def fingerprint(cluster: Cluster) -> str:
    """Identifies the addresses of all training tasks and parameter servers."""
    return callers.fingerprint((*cluster.training_addresses, "ps", *cluster.ps))
