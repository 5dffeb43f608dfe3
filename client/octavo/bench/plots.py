"""Draws a load with matplotlib. Computes no numbers that are quoted.

matplotlib is an optional package: only what asks for pictures imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from octavo.bench.outcome import Outcome
from octavo.bench.summary import percentile

_MAX_POINTS = 400
_NUM_BINS = 120
_INK, _ACCENT, _FAILURE = "#1f4e79", "#d1711e", "#b3261e"


def pictures(outcomes: Sequence[Outcome]) -> Mapping[str, bytes]:
    """PNG files by name."""
    drawings: dict[str, Callable[[Sequence[Outcome]], Figure]] = {
        "latency": _latency,
        "timeline": _timeline,
    }
    style = mpl.rc_context(
        {
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "grid.alpha": 0.3,
            "lines.linewidth": 1.6,
        }
    )
    with style:
        return {name: _png(draw(outcomes)) for name, draw in drawings.items()}


def _png(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def _latency(outcomes: Sequence[Outcome]) -> Figure:
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    done = [one for one in outcomes if not one.error]
    panels = {
        "time to first token [ms]": [one.ttft_s for one in done],
        "between tokens [ms]": [gap for one in done for gap in one.gaps_s],
        "whole request [ms]": [one.e2e_s for one in done],
    }
    for axes, (label, seconds) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        _cumulated(axes, label, seconds)
    figure.axes[0].set_ylabel("share of all within")
    return figure


def _cumulated(axes: Axes, label: str, seconds: Sequence[float]) -> None:
    ranked = sorted(1e3 * each for each in seconds)
    axes.set(xlabel=label, ylim=(0.0, 1.02))
    if not ranked:
        axes.text(0.5, 0.5, "nothing measured", ha="center", transform=axes.transAxes)
        return
    last = len(ranked) - 1
    places = sorted({round(last * step / _MAX_POINTS) for step in range(_MAX_POINTS + 1)})
    shares = [(place + 1) / len(ranked) for place in places]
    axes.step([ranked[place] for place in places], shares, where="post", color=_INK)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, ranked[0], ranked[-1])
    for share, name, line in ((0.5, "p50", ":"), (0.99, "p99", "--")):
        value = percentile(ranked, share)
        axes.axvline(
            value, color=_ACCENT, linestyle=line, linewidth=1.0, label=f"{name} {value:.4g} ms"
        )
    axes.legend(loc="lower right", fontsize="small")


def _plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Numbers as people write them, and enough of them in a narrow range."""
    is_narrow = high < 30 * max(low, 1e-9)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _timeline(outcomes: Sequence[Outcome]) -> Figure:
    figure = Figure(figsize=(10.5, 6.4), layout="constrained")
    speed, open_now, first = figure.subplots(3, 1, sharex=True)
    end_s = max((one.ended_at for one in outcomes), default=0.0) or 1.0
    width_s = end_s / _NUM_BINS
    borders = [place * width_s for place in range(_NUM_BINS + 1)]
    speed.stairs(_rates(outcomes, width_s), borders, fill=True, color=_INK, alpha=0.75)
    speed.set(ylabel="output tokens/s", xlim=(0.0, end_s))
    changes = sorted(
        [(one.sent_at, 1) for one in outcomes] + [(one.ended_at, -1) for one in outcomes]
    )
    times, counts = [0.0], [0]
    for at, change in changes:
        times.append(at)
        counts.append(counts[-1] + change)
    open_now.step(times, counts, where="post", color=_INK)
    open_now.set(ylabel="open requests", ylim=(0, None))
    _first_tokens(first, outcomes)
    return figure


def _rates(outcomes: Sequence[Outcome], width_s: float) -> list[float]:
    """Tokens a second in each bin, those of failed requests too."""
    totals = [0.0] * _NUM_BINS
    for one in outcomes:
        for at, count in zip(one.token_times, one.token_counts, strict=True):
            totals[min(_NUM_BINS - 1, int(at / width_s))] += count / width_s
    return totals


def _first_tokens(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    begun = [one for one in outcomes if one.token_times and not one.error]
    failed = [one for one in outcomes if one.error]
    axes.scatter(
        [one.due_at for one in begun], [1e3 * one.ttft_s for one in begun], s=9, color=_INK
    )
    for one in failed:
        axes.axvline(one.ended_at, color=_FAILURE, linewidth=0.8, alpha=0.5)
    if failed:
        axes.plot([], [], color=_FAILURE, label=f"{len(failed)} failed")
        axes.legend(loc="upper right", fontsize="small")
    axes.set(
        ylabel="time to first token [ms]", xlabel="time since the load began [s]", ylim=(0, None)
    )
