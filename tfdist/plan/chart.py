"""The picture of `tfdist plan --chart`: speedup and efficiency by the number of workers."""

from __future__ import annotations

from pathlib import Path

from tfdist.plan.report import Plan
from tfdist.plan.units import show_bytes, show_rate, show_seconds

# Also apart where two lines coincide, in grey print, and for readers who see few colours.
_SERIES = (
    ("all-reduce after the computing", "#8f5a00", ":", "s"),
    ("all-reduce, overlapped", "#d1495b", "-", "o"),
    ("parameter servers, sync", "#30638e", "--", "^"),
    ("parameter servers, async", "#66a182", "-.", "D"),
)


def draw(plan: Plan, file: Path) -> None:
    """Writes the chart.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    # pyplot would look for a display.
    from matplotlib.figure import Figure

    training, sizes, rows = plan.training, plan.sizes, plan.by_workers()
    figure = Figure(figsize=(10, 5), layout="constrained")
    speedups, efficiencies = figure.subplots(1, 2)
    for i, (name, colour, line, marker) in enumerate(_SERIES):
        style = {"marker": marker, "markersize": 5, "color": colour, "linestyle": line}
        speedups.plot(sizes, [row[i].speedup for row in rows], label=name, **style)
        efficiencies.plot(sizes, [row[i].efficiency for row in rows], **style)
    speedups.plot(sizes, sizes, color="#999999", linewidth=1, label="ideal")
    speedups.axhline(1, color="#bbbbbb", linewidth=1)
    if plan.target is not None:
        efficiencies.axhline(
            plan.target, color="#222222", linewidth=1, label=f"target {plan.target:g}"
        )
    speedups.set_yscale("log")
    efficiencies.set_ylim(0, 1.05)
    for axes, label in ((speedups, "speedup over one worker"), (efficiencies, "efficiency")):
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.grid(True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    speedups.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.suptitle(
        f"{show_bytes(training.dense_bytes)} of gradients, {show_seconds(training.compute)} of "
        f"computing a step, links of {show_rate(training.links.bandwidth)}"
    )
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, dpi=120, format="png")
