"""Charts of benchmarks, in one style: an implementation has the same colour in each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

COLOURS = {
    "tfdist": "#d1495b",
    "tfdist fp16": "#edae49",
    "tfdist, overlapped": "#d1495b",
    "tfdist, after": "#e9a3ab",
    "TensorFlow": "#30638e",
    "stock": "#30638e",
    "stock default": "#30638e",
    "no-op": "#8d96a3",
    "bound": "#222222",
    "predicted": "#bbbbbb",
}
OTHERS = ("#30638e", "#66a182", "#7f5539", "#00798c", "#9d4edd", "#edae49")
MARKERS = "os^"  # of lines that have the same colour


def lines(
    file: Path,
    title: str,
    x_label: str,
    y_label: str,
    ticks: Mapping[float, str],
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log: bool = True,
    note: str = "",
) -> None:
    """Draws lines through points.

    Args:
      file: the PNG.
      title: of the chart.
      x_label: of the axis, as y_label.
      y_label: with the unit.
      ticks: the label of each x.
      series: the points (x, y) of each name; "bound" is dashed.
      log: makes both axes logarithmic; otherwise y begins at 0.
      note: below the chart, in small letters.
    """
    from matplotlib.ticker import LogFormatter

    figure, axes = _begin(title, y_label, note)
    colours = _colours(series)
    uses = Counter()
    for name, points in series.items():
        marker = MARKERS[uses[colours[name]] % len(MARKERS)]
        uses[colours[name]] += 1
        style = {"linestyle": "--"} if name == "bound" else {"marker": marker, "markersize": 5}
        style["linewidth"] = 2.5 if name == "tfdist" else 1.5
        axes.plot(*zip(*points, strict=True), label=name, color=colours[name], **style)
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(LogFormatter())
    else:
        highest = max(y for points in series.values() for _, y in points)
        axes.set_ylim(0, 1.15 * highest)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.set_xlabel(x_label)
    axes.grid(True, which="major", alpha=0.3)
    _end(figure, axes, file)


def bars(
    file: Path,
    title: str,
    y_label: str,
    groups: Mapping[str, Mapping[str, float]],
    *,
    log: bool = False,
    note: str = "",
) -> None:
    """Draws a group of bars for each case, with a labelled bar for each implementation.

    Args:
      file: the PNG.
      title: of the chart.
      y_label: with the unit.
      groups: by case, the value of each implementation.
      log: a logarithmic axis, for values of several magnitudes.
      note: below the chart, in small letters.
    """
    figure, axes = _begin(title, y_label, note)
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    width, colours = 0.8 / len(names), _colours(names)
    for i, name in enumerate(names):
        shown = [(g, values[name]) for g, values in enumerate(groups.values()) if name in values]
        positions = [g + (i - (len(names) - 1) / 2) * width for g, _ in shown]
        heights = [value for _, value in shown]
        drawn = axes.bar(positions, heights, width * 0.92, label=name, color=colours[name])
        axes.bar_label(drawn, [_short(value) for value in heights], fontsize=7, padding=2)
    axes.set_xticks(range(len(groups)), list(groups))
    if log:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.margins(y=0.12)
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    _end(figure, axes, file)


def spans(
    file: Path,
    title: str,
    x_label: str,
    shown: Mapping[str, tuple[float, float]],
    mark: tuple[float, str],
) -> None:
    """Draws time spans, one below the other.

    Args:
      file: the PNG.
      title: of the chart.
      x_label: with the unit.
      shown: begin and end of each span, by its name.
      mark: the x of a vertical line, and its label.
    """
    figure, axes = _begin(title, "", "")
    begins = [begin for begin, _ in shown.values()]
    lengths = [end - begin for begin, end in shown.values()]
    axes.barh(list(shown), lengths, left=begins, height=0.7, color=COLOURS["tfdist"])
    axes.axvline(mark[0], label=mark[1], color=COLOURS["bound"], linestyle="--")
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    axes.grid(True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _end(figure, axes, file)


def _begin(title: str, y_label: str, note: str):
    # pyplot would look for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_ylabel(y_label)
    if note:
        figure.supxlabel(note, fontsize=8, color="#555555")
    return figure, axes


def _end(figure, axes, file: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(file, dpi=120)


def _colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: its fixed one, or the next free one."""
    taken = [COLOURS[name] for name in names if name in COLOURS]
    others = itertools.cycle(colour for colour in OTHERS if colour not in taken)
    return {name: COLOURS.get(name) or next(others) for name in names}


def _short(value: float) -> str:
    """Three digits, with a letter for thousands and millions."""
    for scale, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"
