"""The tables and the JSON of `tfdist plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.plan import costs, memory
from tfdist.plan.costs import Estimate, GradientBucket, PlannedTraining
from tfdist.plan.measure import Measured
from tfdist.plan.units import show_bytes, show_count, show_rate, show_seconds

# Workers pay if each of them keeps this part of the speed that it has alone.
_PAYS = 0.8
# A smaller part of a step is not worth a word.
_HIDDEN = 0.01


@dataclasses.dataclass(frozen=True)
class Plan:
    """All estimates for a training.

    Args:
      training: the planned training.
      workers: the number that was asked for.
      target: the efficiency to reach; `None`: none.
      measured: the measurements of a script; `None`: parameters and computing were given.
      memory: bytes that a worker may use; `None`: memory is left out.
    """

    training: PlannedTraining
    workers: int
    target: float | None = None
    measured: Measured | None = None
    memory: int | None = None

    @property
    def methods(self) -> list[Estimate]:
        """All ways of exchanging gradients, for the workers that were asked for."""
        return costs.methods(self.training, self.workers, self.target)

    @property
    def sizes(self) -> list[int]:
        """The numbers of workers to compare: 2, 4, 8, ... up to four times as many, and these."""
        powers = [1 << i for i in range(1, (4 * self.workers).bit_length())]
        return sorted({*powers, self.workers} - {1})

    def by_workers(self) -> list[list[Estimate]]:
        """For each size: tfdist's all-reduce without and with overlap, servers in step and not."""
        training, target = self.training, self.target
        return [
            [
                costs.all_reduce(training, size, target=target),
                costs.all_reduce(training, size, overlapped=True, target=target),
                costs.synchronous_servers(training, size, target=target),
                costs.asynchronous_servers(training, size, target=target),
            ]
            for size in self.sizes
        ]


def text(plan: Plan) -> str:
    """The tables, for a terminal."""
    parts = [_situation(plan), _methods(plan), _by_workers(plan), _answer(plan)]
    if plan.memory is not None and plan.measured is not None:
        parts.append(memory.table(plan.measured.memory, plan.workers, plan.memory))
    return "\n\n".join("\n".join(lines) for lines in parts)


def as_json(plan: Plan) -> dict[str, object]:
    """The same as values: seconds, bytes and bytes per second."""
    training = plan.training
    return {
        "workers": plan.workers,
        "parameters": training.parameters,
        "value_bytes": training.value_bytes,
        "gradient_bytes": training.dense_bytes,
        "tables": [dataclasses.asdict(table) for table in training.tables],
        "compute": training.compute,
        "bandwidth": training.links.bandwidth,
        "latency": training.links.latency,
        "workers_per_host": training.per_host,
        "local_bandwidth": training.links.local_bandwidth if training.per_host > 1 else None,
        "servers": training.servers,
        "backward": training.backward,
        "profile": [dataclasses.asdict(bucket) for bucket in training.profile],
        "target": plan.target,
        "measured_steps": plan.measured.steps if plan.measured else None,
        "memory": [
            dataclasses.asdict(need)
            for need in (memory.needs(plan.measured.memory, plan.workers) if plan.measured else ())
        ],
        "methods": [dataclasses.asdict(estimate) for estimate in plan.methods],
        "by_workers": [
            dataclasses.asdict(estimate) for row in plan.by_workers() for estimate in row
        ],
    }


def _situation(plan: Plan) -> list[str]:
    training, measured = plan.training, plan.measured
    lines = []
    if measured is not None:
        lines.append(f"measured: median of {measured.steps} steps of the script alone")
        if training.profile:
            parts = ", ".join(f"{bucket.ready:.0%}" for bucket in _some(training.profile))
            lines.append(
                f"buckets of gradients: {len(training.profile)}, complete after {parts} of a step"
            )
    lines.append(
        f"dense parameters: {show_count(training.parameters)}, "
        f"{show_bytes(training.dense_bytes)} of gradients a step"
    )
    uncounted = measured.uncounted if measured is not None else ()
    for table in training.tables:
        if not table.rows:
            lines.append(
                f"sparse parameters: {table.name}, {table.rows_per_step:,.0f} rows of "
                f"{table.width} values a step; the plan leaves out tables of tfdist"
            )
            continue
        note = " (not counted: all are taken)" if table.name in uncounted else ""
        lines.append(
            f"sparse parameters: {show_count(table.parameters)} in {table.name}, "
            f"{table.rows_per_step:,.0f} of {table.rows:,} rows a step{note}"
        )
    network = f"link of a host: {show_rate(training.links.bandwidth)}"
    if training.links.latency:
        network += f", latency {show_seconds(training.links.latency)}"
    if training.per_host > 1:
        network += f"; {training.per_host} workers on a host, "
        network += f"{show_rate(training.links.local_bandwidth)} between them"
    lines.append(f"computing: {show_seconds(training.compute)} a step; {network}")
    return lines


def _some(profile: Sequence[GradientBucket]) -> Sequence[GradientBucket]:
    """At most five of them, with the first and the last."""
    last = len(profile) - 1
    return [profile[i] for i in sorted({last * part // 4 for part in range(5)})]


def _methods(plan: Plan) -> list[str]:
    needs = f"for {plan.target:g} needs" if plan.target is not None else ""
    title = f"{plan.workers} workers" if plan.workers > 1 else "1 worker"
    lines = [_columns(title, "exchange", "step", "efficiency", "speedup", needs)]
    for estimate in plan.methods:
        name = f"{'* ' if estimate.chosen else '  '}{_name(estimate, plan.training)}"
        lines.append(
            _columns(
                name,
                show_seconds(estimate.communication),
                show_seconds(estimate.step),
                f"{estimate.efficiency:.4f}",
                f"{estimate.speedup:.2f}",
                _needed(estimate) if plan.target is not None else "",
            )
        )
    lines += [
        "* tfdist's choice of all-reduce; its strategies overlap. Exchange: the time of all bytes,",
        "also of gradients that travel beside the computing. Speedup: samples per second over one",
        "worker, each with a batch of its own.",
    ]
    return lines


def _by_workers(plan: Plan) -> list[str]:
    rows = plan.by_workers()
    heads = ["all-reduce", "overlapped", "servers, sync", "servers, async"]
    lines = [f"{'workers':>9}" + "".join(f"{head:>20}" for head in heads)]
    lines.append(" " * 9 + "".join(f"{'efficiency, speedup':>20}" for _ in heads))
    for size, row in zip(plan.sizes, rows, strict=True):
        mark = ">" if size == plan.workers else " "
        cells = (f"{each.efficiency:.4f} {each.speedup:8.2f}x" for each in row)
        lines.append(f"{mark}{size:8}" + "".join(f"{cell:>20}" for cell in cells))
    return lines


def _answer(plan: Plan) -> list[str]:
    """The samples per second, and whether more workers pay."""
    speedups = [
        (size, costs.all_reduce(plan.training, size, overlapped=True).speedup)
        for size in (plan.workers, 2 * plan.workers)
        if size > 1
    ]
    parts = [f"{size} workers make {speedup:.2f} times" for size, speedup in speedups]
    answer = f"With overlap, {' and '.join(parts)} the samples per second of one."
    return [answer, *_verdict(plan)]


def _verdict(plan: Plan) -> list[str]:
    """Whether the workers that were asked for pay, and what limits them."""
    if plan.workers == 1:
        return []
    training = plan.training
    found = costs.all_reduce(training, plan.workers, overlapped=True)
    lost = 1 - training.compute / found.step
    waits = f"{lost:.0%} of a step is waiting for the network"
    if lost < _HIDDEN:
        waits = "the exchange hides behind the computing"
    if found.speedup <= 1:
        verdict = f"{plan.workers} workers are not faster than one: {waits}"
    elif found.efficiency < _PAYS:
        verdict = f"{plan.workers} workers pay in part: {waits}"
    else:
        verdict = f"{plan.workers} workers pay: {waits}"
    return [f"Verdict: {verdict}{_best_size(plan) if found.efficiency < _PAYS else ''}."]


def _best_size(plan: Plan) -> str:
    """The most workers that pay; or the ways to make them pay, if two do not."""
    training = plan.training
    paying = [
        size
        for size in plan.sizes
        if costs.all_reduce(training, size, overlapped=True).efficiency >= _PAYS
    ]
    if not paying:
        return ". A faster link, compressed gradients or larger batches make more workers pay"
    return f". Up to {max(paying)} workers pay"


def _name(estimate: Estimate, training: PlannedTraining) -> str:
    if estimate.method in (costs.SYNC, costs.ASYNC):
        return estimate.method.replace("servers", f"servers ({training.servers})")
    return estimate.method + (", overlapped" if estimate.overlapped else "")


def _needed(estimate: Estimate) -> str:
    if estimate.bandwidth_needed is None:
        return "no link is enough"
    return show_rate(estimate.bandwidth_needed) if estimate.bandwidth_needed else "no network"


def _columns(name: str, *cells: str) -> str:
    *others, last = cells
    return (f"{name:<35}" + "".join(f"{cell:>11}" for cell in others) + f"{last:>18}").rstrip()
