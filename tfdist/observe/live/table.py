"""The table of `tfdist top`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfdist.config.printing import printable_line
from tfdist.observe.live.records import JobActivity, TaskActivity, first_that_trains
from tfdist.observe.metrics.fit_progress import FitProgress

_HEAD = (
    "task",
    "steps",
    "steps/s",
    "rows/s",
    "communicates",
    "waits",
    "most for",
    "sent/s",
    "received/s",
    "cpu",
    "memory",
)
_TEXT_COLUMNS = (0, 6)


def describe(job: JobActivity) -> str:
    """Returns the table of a job, with a sentence on each task that does not answer."""
    answering = [task for task in job.tasks if not task.problem]
    parts = [f"{len(answering)} of {len(job.tasks)} tasks answer"]
    if answering:
        parts.append(_align([_HEAD, *map(_cells, answering)]))
    trains = first_that_trains(answering)
    if trains is not None and trains.fit is not None:
        parts.append(f"{printable_line(trains.name)}: {progress(trains.fit)}")
    if job.straggler is not None:
        share = job.waited_for[job.straggler]
        parts.append(
            f"late: {printable_line(job.straggler)}; the others wait for it {100 * share:.0f} % of "
            "a task's time"
        )
    for queue in job.queues:
        total = queue.to_do + queue.pending + queue.done + queue.parked
        rate = "" if queue.record_rate is None else f"; {queue.record_rate:.0f} records/s"
        parts.append(
            f"queue {printable_line(queue.name)}: {queue.done} of {total} data tasks done, "
            f"{queue.pending} pending, {queue.parked} parked{rate}"
        )
    for task in job.tasks:
        if task.problem:
            parts.append(printable_line(f"{task.name} at {task.address}: {task.problem}"))
    return "\n".join(parts)


def _cells(task: TaskActivity) -> tuple[str, ...]:
    longest = max(task.waits, key=lambda name: task.waits[name], default="")
    waited = task.waits.get(longest, 0.0)
    return (
        printable_line(task.name),
        "-" if task.steps is None else f"{task.steps}",
        number(task.step_rate),
        number(task.row_rate),
        percent(task.communication),
        percent(waited if task.waits else None),
        printable_line(longest) if waited >= 0.005 else "",
        size(task.sent),
        size(task.received),
        percent(task.cpu),
        size(task.memory),
    )


def progress(fit: FitProgress) -> str:
    """Returns where a `fit` stands: "epoch 3 of 10, batch 57 of 110, 12 min left"."""
    epoch = f"epoch {fit.epoch} of {fit.epochs}"
    if fit.has_ended:
        return f"{epoch}, fit has ended"
    batches = "" if fit.batches is None else f" of {fit.batches}"
    left = "" if fit.remaining is None else f", {duration(fit.remaining)} left"
    return f"{epoch}, batch {fit.batch}{batches}{left}"


def duration(seconds: float) -> str:
    """Returns a time of minutes, hours or days with two parts at most: "3 h 20 min"."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    hours, days = minutes // 60, minutes // (24 * 60)
    if not hours:
        return f"{minutes} min"
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min"


def number(value: float | None) -> str:
    """Returns a rate with three digits or more; "-" for none."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(share: float | None) -> str:
    """Returns a share of time; "-" for none."""
    return "-" if share is None else f"{100 * share:.0f} %"


def size(count: float | None) -> str:
    """Returns a number of bytes in decimal units; "-" for none."""
    if count is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _align(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in _TEXT_COLUMNS else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
