"""A load as one HTML file that needs nothing else: numbers, pictures, setup. Measures nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from octavo.bench.result import Result

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto;
  max-width: 1040px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.about { color: #555; margin: .2rem 0 1.5rem; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; }
.card { border: 1px solid #ddd; border-radius: 6px; padding: .6rem .8rem; min-width: 7.5rem; }
.card b { display: block; font-size: 1.35rem; } .card span { color: #555; font-size: .85rem; }
.bad b { color: #b3261e; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; }
td + td, th + th { font-variant-numeric: tabular-nums; }
.numbers td + td, .numbers th + th { text-align: right; }
tr { border-bottom: 1px solid #eee; } img { max-width: 100%; height: auto; }
"""
_CAPTIONS = {
    "latency": "Share of all that took at most this long",
    "timeline": "The load over time",
}


def html_report(result: Result, pictures: Mapping[str, bytes]) -> str:
    """The page; `pictures` are PNG files by name."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>octavo bench: {_text(result.setup.get('model', ''))}</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>octavo bench</h1>",
        f'<p class="about">{_about(result)}</p>',
        _cards(result),
        "<h2>Times</h2>",
        _table(result.latency_rows(), kind="numbers", has_head=True),
    ]
    for name, png in pictures.items():
        caption = _CAPTIONS.get(name, name)
        source = f"data:image/png;base64,{b64encode(png).decode()}"
        parts.append(f'<h2>{_text(caption)}</h2><img alt="{_text(caption)}" src="{source}">')
    parts += [
        "<h2>Load</h2>",
        _table(result.load_rows()),
        "<h2>Setup</h2>",
        _table([(name, str(value)) for name, value in result.setup.items()]),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _about(result: Result) -> str:
    facts = (result.setup.get(name, "") for name in ("model", "target", "began"))
    return " · ".join(_text(fact) for fact in facts if fact)


def _cards(result: Result) -> str:
    found = result.summary
    num_failed = found.num_requests - found.num_completed
    cards = (
        (f"{found.output_tokens_per_s:,.0f}", "output tokens/s", ""),
        (f"{found.requests_per_s:.2f}", "requests/s", ""),
        (
            f"{1e3 * found.ttft_s.p50:.0f} / {1e3 * found.ttft_s.p99:.0f} ms",
            "first token p50 / p99",
            "",
        ),
        (
            f"{1e3 * found.itl_s.p50:.1f} / {1e3 * found.itl_s.p99:.1f} ms",
            "between tokens p50 / p99",
            "",
        ),
        (f"{found.goodput_per_s:.2f}", "good requests/s", ""),
        (str(num_failed), "failed", " bad" if num_failed else ""),
    )
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card{kind}"><b>{_text(value)}</b><span>{_text(label)}</span></div>'
            for value, label, kind in cards
        )
        + "</div>"
    )


def _table(rows: Sequence[Sequence[str]], *, kind: str = "", has_head: bool = False) -> str:
    lines = []
    for place, row in enumerate(rows):
        cell = "th" if has_head and not place else "td"
        lines.append("<tr>" + "".join(f"<{cell}>{_text(v)}</{cell}>" for v in row) + "</tr>")
    return f'<table class="{kind}">' + "\n".join(lines) + "</table>"


def _text(value: object) -> str:
    return escape(str(value), quote=True)
