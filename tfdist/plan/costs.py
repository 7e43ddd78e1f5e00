"""Step time, efficiency and needed bandwidth: pure formulas.

Every worker computes on a batch of its own, of the same size for any number of workers. With T
for the step time of N workers and Ts for one worker's alone, the efficiency is Ts / T, and the
speedup, in samples per second, N x Ts / T.

Without overlap T = Ts + Tc, Tc being the time of the exchange. With overlap the gradients travel in
buckets. Bucket i is complete when a part r(i) of the computing is done; it travels when it is
complete and the ones before it have gone, in its share Tc(i) of Tc. The computing after the last
bucket, such as the update, follows at the end:

    T = max over i (r(i) Ts + Tc(i) + Tc(i+1) + ... + Tc(k)) + (1 - r(k)) Ts

Where r is not measured, back-propagation is the last two thirds of the computing, and completes as
many bytes in the first second of it as in the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.plan import traffic
from tfdist.plan.traffic import Links, Phases

# A layer multiplies once forward, and twice backward: for its inputs' and its weights' gradients.
BACKWARD = 2 / 3

SYNC = "parameter servers, sync"
ASYNC = "parameter servers, async"


@dataclasses.dataclass(frozen=True)
class Table:
    """A variable whose gradients are rows.

    Args:
      name: the variable's.
      rows: of the whole table.
      width: parameters in a row.
      rows_per_step: different rows that one worker's step has gradients of.
    """

    name: str
    rows: int
    width: int
    rows_per_step: float

    @property
    def parameters(self) -> int:
        """Of the whole table."""
        return self.rows * self.width


@dataclasses.dataclass(frozen=True)
class GradientBucket:
    """Gradients that travel together.

    Args:
      parameters: their number.
      ready: the part of a step's computing after which all of them exist, 0 to 1.
    """

    parameters: int
    ready: float


@dataclasses.dataclass(frozen=True)
class PlannedTraining:
    """The training and its machines.

    Args:
      parameters: trainable ones with dense gradients.
      compute: seconds of a step of one worker alone.
      links: of the hosts.
      value_bytes: of one value on the network.
      tables: variables with gradients of rows.
      per_host: workers on each host.
      servers: parameter servers, each on a host of its own.
      backward: the part of `compute` that is back-propagation.
      profile: the buckets of the dense gradients, in the order in which they are complete; empty
        means that bytes are completed evenly during back-propagation.
    """

    parameters: int
    compute: float
    links: Links
    value_bytes: int = 4
    tables: Sequence[Table] = ()
    per_host: int = 1
    servers: int = 1
    backward: float = BACKWARD
    profile: Sequence[GradientBucket] = ()

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense gradients."""
        return self.parameters * self.value_bytes

    @property
    def row_bytes(self) -> float:
        """Bytes of one worker's gradients of rows in a step, with their ids."""
        return sum(
            table.rows_per_step * (table.width * self.value_bytes + traffic.ID_BYTES)
            for table in self.tables
        )

    @property
    def buckets(self) -> Sequence[GradientBucket]:
        """The profile, or one of bytes that are completed evenly."""
        if self.profile:
            return self.profile
        return evenly(self.parameters, self.value_bytes, self.backward)


def evenly(parameters: int, value_bytes: int, backward: float) -> list[GradientBucket]:
    """Full buckets, and what is left, which are completed evenly during back-propagation.

    Args:
      parameters: of all buckets.
      value_bytes: of one value.
      backward: the part of a step's computing that is back-propagation, at its end.
    """
    size = max(1, traffic.BUCKET_BYTES // value_bytes)
    ends = [*range(size, parameters, size), parameters]
    ready = [1 - backward + backward * end / max(1, parameters) for end in ends]
    ready[-1] = 1.0
    starts = [0, *ends[:-1]]
    return [GradientBucket(e - s, r) for s, e, r in zip(starts, ends, ready, strict=True)]


def bucketed(gradients: Sequence[GradientBucket], value_bytes: int = 4) -> list[GradientBucket]:
    """Puts gradients into buckets as tfdist does: a bucket is closed once it holds 4 MB.

    Args:
      gradients: each alone, in the order in which they exist; no gradient is divided.
      value_bytes: of one value.
    """
    buckets: list[GradientBucket] = []
    parameters, ready = 0, 0.0
    for i, gradient in enumerate(gradients):
        parameters, ready = parameters + gradient.parameters, max(ready, gradient.ready)
        if parameters * value_bytes >= traffic.BUCKET_BYTES or i == len(gradients) - 1:
            buckets.append(GradientBucket(parameters, ready))
            parameters = 0
    return buckets


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The expected cost of one way of exchanging gradients.

    Attributes:
      method: the algorithm, or SYNC or ASYNC.
      overlapped: whether gradients travel during back-propagation.
      chosen: whether tfdist chooses this algorithm of all-reduce.
      workers: their number.
      communication: seconds of a step's exchange; with overlap a part of it is hidden.
      step: seconds.
      efficiency: a step's computing over the step.
      speedup: samples per second over one worker's alone.
      bandwidth_needed: bytes per second of a host's link for the target; 0 if any will do; `None`
        if none suffices or there is no target.
    """

    method: str
    overlapped: bool
    chosen: bool
    workers: int
    communication: float
    step: float
    efficiency: float
    speedup: float
    bandwidth_needed: float | None


def algorithm_of(training: PlannedTraining, workers: int) -> str:
    """The algorithm that tfdist chooses for the dense gradients' buckets."""
    size = max(bucket.parameters for bucket in training.buckets) * training.value_bytes
    return traffic.selected(workers, size, training.per_host)


def all_reduce(
    training: PlannedTraining,
    workers: int,
    *,
    algorithm: str | None = None,
    overlapped: bool = False,
    target: float | None = None,
) -> Estimate:
    """A step with an all-reduce of the gradients.

    Args:
      training: the planned training.
      workers: their number.
      algorithm: of `traffic`; `None` means tfdist's choice.
      overlapped: whether gradients travel during back-propagation, as tfdist's do.
      target: the efficiency to reach.
    """
    choice = algorithm_of(training, workers)
    method = algorithm or choice
    phases = [*traffic.all_reduce(method, workers, training.dense_bytes, training.per_host)]
    for table in training.tables:
        row_bytes = table.width * training.value_bytes
        phases += traffic.rows(
            workers, table.rows_per_step, row_bytes, table.rows, training.per_host
        )
    communication = traffic.seconds(phases, training.links)
    needed = None
    if target is not None:
        budget = communication_budget(training, target, overlapped)
        needed = traffic.bandwidth_for(phases, budget, training.links)
    step = step_time(training, communication, overlapped)
    return _estimate(
        training, method, workers, communication, step, needed, overlapped, method == choice
    )


def step_time(training: PlannedTraining, communication: float, overlapped: bool) -> float:
    """Seconds of a step with an exchange of `communication` seconds; see the module."""
    compute = training.compute
    if not overlapped:
        return compute + communication
    waits = _waits(training)
    return max(compute * begin + communication * share for begin, share in waits)


def communication_budget(training: PlannedTraining, target: float, overlapped: bool) -> float:
    """Seconds that an exchange may take for an efficiency; the inverse of `step_time`."""
    compute = training.compute
    step = compute / target
    if not overlapped:
        return step - compute
    return min((step - compute * begin) / share for begin, share in _waits(training))


def _waits(training: PlannedTraining) -> list[tuple[float, float]]:
    """For each bucket the part of the computing that passes beside no exchange of it or later ones.

    Returns:
      That part, and the share of the exchange that this bucket and later ones take.
    """
    buckets = training.buckets
    total = sum(bucket.parameters for bucket in buckets)
    after = 1 - buckets[-1].ready
    waits = []
    rest = total
    for bucket in buckets:
        waits.append((bucket.ready + after, rest / total if total else 1.0))
        rest -= bucket.parameters
    return waits


def synchronous_servers(
    training: PlannedTraining, workers: int, *, target: float | None = None
) -> Estimate:
    """A step with parameter servers, all workers in step: pull, compute, push.

    Both directions count, because a worker pulls before it computes and pushes afterwards. The
    published bound C N / servers is one of them.
    """
    phases = _pull_and_push(training, workers)
    communication = traffic.seconds(phases, training.links)
    needed = None
    if target is not None:
        budget = communication_budget(training, target, overlapped=False)
        needed = traffic.bandwidth_for(phases, budget, training.links)
    step = training.compute + communication
    return _estimate(training, SYNC, workers, communication, step, needed)


def asynchronous_servers(
    training: PlannedTraining, workers: int, *, target: float | None = None
) -> Estimate:
    """A step with parameter servers and workers that do not wait: a lower bound.

    A worker pulls, computes and pushes without hindrance, unless the busiest link is busy all the
    time. Some pull while others push, so that both directions of the link are in use. Waiting for
    workers that happen to pull at the same time is left out: where workers compute little, a step
    lies between this and a synchronous step.
    """
    alone = _pull_and_push(training, 1)
    # The bytes on the servers' links for one step of all workers, in each direction.
    pull, push = _pull_and_push(training, workers)
    busiest = pull if pull.network >= push.network else push
    busy = (dataclasses.replace(busiest, messages=0),)
    links, compute = training.links, training.compute
    communication = max(traffic.seconds(phases, links) for phases in (alone, busy))
    step = max(compute + traffic.seconds(alone, links), traffic.seconds(busy, links))
    needed: float | None = None
    if target is not None:
        rates = (
            traffic.bandwidth_for(alone, compute / target - compute, links),
            traffic.bandwidth_for(busy, compute / target, links),
        )
        known = [rate for rate in rates if rate is not None]
        needed = max(known) if len(known) == len(rates) else None
    return _estimate(training, ASYNC, workers, communication, step, needed)


def methods(training: PlannedTraining, workers: int, target: float | None = None) -> list[Estimate]:
    """All ways of exchanging gradients; tfdist's own all-reduce first, without and with overlap."""
    choice = algorithm_of(training, workers)
    algorithms = [choice]
    if 1 < traffic.hosts_of(workers, training.per_host) < workers:
        algorithms.append(traffic.TWO_LEVEL)
    algorithms += [traffic.RING, traffic.RECURSIVE_DOUBLING, traffic.TREE]
    estimates = [
        all_reduce(training, workers, algorithm=each, overlapped=overlapped, target=target)
        for each in dict.fromkeys(algorithms)
        for overlapped in (False, True)
    ]
    estimates.append(synchronous_servers(training, workers, target=target))
    estimates.append(asynchronous_servers(training, workers, target=target))
    return estimates


def _pull_and_push(training: PlannedTraining, workers: int) -> Phases:
    # Rows of tables are pulled and pushed alone, as in tfdist.layers.Embedding.
    size = training.dense_bytes + training.row_bytes
    return traffic.pull_and_push(workers, size, size, training.servers, training.per_host)


def _estimate(
    training: PlannedTraining,
    method: str,
    workers: int,
    communication: float,
    step: float,
    needed: float | None,
    overlapped: bool = False,
    chosen: bool = False,
) -> Estimate:
    efficiency = training.compute / step
    return Estimate(
        method=method,
        overlapped=overlapped,
        chosen=chosen,
        workers=workers,
        communication=communication,
        step=step,
        efficiency=efficiency,
        speedup=workers * efficiency,
        bandwidth_needed=needed,
    )
