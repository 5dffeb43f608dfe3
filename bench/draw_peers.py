"""Draws docs/performance.json: speed beside the peers', and where the first token's time goes.

python -m bench.draw_peers [docs/performance.json] [docs/images]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

_COLOURS = {"Octavo": "#1b6ca8", "vLLM 0.24": "#9aa5b1", "nano-vllm": "#d0d5db"}


def draw_bars(axes: Axes, chart: dict[str, Any]) -> None:
    """A group of bars for each model, each bar with its number."""
    width = 0.26
    for group, bars in enumerate(chart["bars"].values()):
        for place, (name, value) in enumerate(bars.items()):
            left = group + width * (place - (len(bars) - 1) / 2)
            bar = axes.bar(left, value, 0.95 * width, color=_COLOURS[name], label=name)
            text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
            axes.bar_label(bar, [text], fontsize=7)
    axes.set_xticks(range(len(chart["bars"])), list(chart["bars"]))
    axes.set_title(chart["unit"], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw_parts(axes: Axes, chart: dict[str, Any]) -> None:
    """One bar, cut into its parts."""
    left = 0.0
    parts = chart["parts"]
    shades = mpl.colormaps["Blues"]
    for place, (name, value) in enumerate(parts.items()):
        axes.barh(0, value, left=left, color=shades(0.25 + 0.6 * (place % 2)), height=0.5)
        axes.text(left + value / 2, 0.3, f"{name} {value:.2f}", rotation=35, fontsize=7)
        left += value
    axes.set_title(chart["unit"], fontsize=8, pad=70)
    axes.set_yticks([])
    axes.set_ylim(-0.3, 0.35)
    axes.spines[["top", "right", "left"]].set_visible(False)


def main() -> None:
    """Writes two pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("numbers", type=Path, nargs="?", default=Path("docs/performance.json"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/images"))
    options = parser.parse_args()
    numbers = json.loads(options.numbers.read_text(encoding="utf-8"))
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "octavo"  # the same picture from the same numbers
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    draw_bars(left, numbers["throughput"])
    draw_bars(right, numbers["one_stream"])
    handles = [Patch(color=colour) for colour in _COLOURS.values()]
    right.legend(handles, list(_COLOURS), fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(options.folder / "gpu-peers.svg", metadata={"Date": None})
    figure, axes = plt.subplots(figsize=(9, 2.6))
    draw_parts(axes, numbers["idle_first_token"])
    figure.savefig(
        options.folder / "gpu-first-token.svg", metadata={"Date": None}, bbox_inches="tight"
    )


if __name__ == "__main__":
    main()
