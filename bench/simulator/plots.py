"""Draws with matplotlib, as PNG and SVG. Computes nothing.

matplotlib is no dependency of the service: only what asks for plots imports this file.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bench.simulator.recorder import Recorder
from bench.simulator.shown import BarsDrawing, Drawing, GapsDrawing, LatencyDrawing


def draw(drawing: Drawing, folder: Path) -> list[Path]:
    """Writes a drawing as both kinds of file; returns their paths."""
    style = mpl.rc_context(
        {
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "grid.alpha": 0.3,
            "lines.linewidth": 1.2,
            "svg.fonttype": "none",  # text stays text
            "svg.hashsalt": "octavo",  # the same picture is the same file
        }
    )
    with style:
        figure = _figure_of(drawing)
        folder.mkdir(parents=True, exist_ok=True)
        png, svg = folder / f"{drawing.name}.png", folder / f"{drawing.name}.svg"
        figure.savefig(png, dpi=100, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


def _figure_of(drawing: Drawing) -> Figure:
    match drawing:
        case GapsDrawing():
            return _gaps(drawing)
        case LatencyDrawing():
            return _latencies(drawing)
        case BarsDrawing():
            return _bars(drawing)


def _gaps(drawing: GapsDrawing) -> Figure:
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, gaps_at in drawing.runs.items():
        shown = [
            each
            for each in gaps_at
            if drawing.from_s <= each.at_s <= drawing.until_s and len(each.gaps_s)
        ]
        times = [each.at_s for each in shown]
        axes.plot(times, [1e3 * each.gaps_s.max() for each in shown], label=name)
    axes.set(xlabel="time [s]", ylabel="longest gap between tokens [ms]", yscale="log")
    _plain_ticks(axes.yaxis)
    figure.legend(loc="outside upper center", ncols=len(drawing.runs), fontsize="small")
    return figure


def _latencies(drawing: LatencyDrawing) -> Figure:
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    first, gaps = figure.subplots(1, 2, sharey=True)
    # The first line is wider, so that one drawn over it does not hide it.
    for place, (name, recorder) in enumerate(drawing.runs.items()):
        width = 1.2 if place else 3.0
        times_ms, shares = _first_tokens(recorder)
        first.plot(times_ms, shares, label=name, linewidth=width)
        seconds, within = recorder.gaps.cumulated()
        gaps.plot(1e3 * seconds, 1 - within, linewidth=width)
    for axes, what in ((first, "to first token"), (gaps, "between tokens")):
        axes.set(xlabel=f"time {what} [ms]", xscale="log", yscale="log", ylim=(1e-3, 1.1))
        _plain_ticks(axes.xaxis)
    first.set_ylabel("share that took longer")
    figure.legend(loc="outside upper center", ncols=len(drawing.runs), fontsize="small")
    return figure


def _first_tokens(recorder: Recorder) -> tuple[list[float], list[float]]:
    """Times to first token, and the share that took longer than each."""
    waits_ms = sorted(
        1e3 * (recorder.first_s[each.job.number] - each.arrived_s)
        for each in recorder.served
        if each.arrived_s in recorder.window and recorder.num_tokens[each.job.number]
    )
    count = len(waits_ms)
    # Of a hundred thousand points a few hundred, even by the logarithm of their share, are enough.
    places = sorted({count - round(count ** (step / 300)) for step in range(301)} | {0})
    return [waits_ms[place] for place in places], [1 - place / count for place in places]


def _plain_ticks(axis: Axis) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _bars(drawing: BarsDrawing) -> Figure:
    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.subplots()
    bars = axes.bar(list(drawing.values), list(drawing.values.values()), width=0.6)
    axes.bar_label(bars, fmt="%.2f")
    axes.set(ylabel=drawing.label)
    return figure
