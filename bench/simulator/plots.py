"""Draws with matplotlib, as PNG and SVG. Computes nothing.

matplotlib is no dependency of the service: only what asks for plots imports this file.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    axes.legend()
    return figure


def _latencies(drawing: LatencyDrawing) -> Figure:
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    first, gaps = figure.subplots(1, 2, sharey=True)
    for name, recorder in drawing.runs.items():
        _draw_first_tokens(first, name, recorder)
        seconds, shares = recorder.gaps.cumulated()
        gaps.plot(1e3 * seconds, shares, label=name)
    first.set(xlabel="time to first token [ms]", ylabel="share within", xscale="log")
    gaps.set(xlabel="time between tokens [ms]", xscale="log")
    first.legend()
    return figure


def _draw_first_tokens(axes: Axes, name: str, recorder: Recorder) -> None:
    waits_ms = sorted(
        1e3 * (recorder.first_s[each.job.number] - each.arrived_s)
        for each in recorder.served
        if each.arrived_s in recorder.window and recorder.num_tokens[each.job.number]
    )
    # A few hundred points draw the same curve as a hundred thousand.
    places = range(0, len(waits_ms), max(1, len(waits_ms) // 400))
    axes.plot(
        [waits_ms[place] for place in places],
        [(place + 1) / len(waits_ms) for place in places],
        label=name,
    )


def _bars(drawing: BarsDrawing) -> Figure:
    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.subplots()
    bars = axes.bar(list(drawing.values), list(drawing.values.values()), width=0.6)
    axes.bar_label(bars, fmt="%.2f")
    axes.set(ylabel=drawing.label)
    return figure
