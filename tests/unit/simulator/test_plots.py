"""Drawings become files of both kinds, the same ones each time."""

from pathlib import Path

import pytest

from bench.simulator import traces
from bench.simulator.experiment import Setup, run
from bench.simulator.plots import draw
from bench.simulator.shown import BarsDrawing, Drawing, GapsDrawing, LatencyDrawing


@pytest.fixture(scope="module")
def drawings() -> list[Drawing]:
    trace = traces.poisson(rate=4.0, seconds=3.0, seed=1)
    recorder = run(Setup(), trace, keeps_gaps=True).recorder
    return [
        GapsDrawing(name="gaps", runs={"a": recorder.gaps_at}, from_s=0.0, until_s=3.0),
        LatencyDrawing(name="latency", runs={"a": recorder}),
        BarsDrawing(name="bars", label="share", values={"a": 0.25, "b": 0.5}),
    ]


def test_each_drawing_is_a_png_and_an_svg(drawings: list[Drawing], tmp_path: Path) -> None:
    for drawing in drawings:
        png, svg = draw(drawing, tmp_path / "pictures")
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in svg.read_text()
        again = draw(drawing, tmp_path / "again")
        assert again[1].read_text() == svg.read_text()
