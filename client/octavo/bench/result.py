"""A finished load with its setup, as text for people and as JSON for programs. Draws nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.bench.outcome import Outcome
from octavo.bench.summary import Spread, Summary

Facts = Mapping[str, str | int | float]
_SPREADS = {
    "ttft_s": "time to first token",
    "itl_s": "between tokens",
    "tpot_s": "per output token",
    "e2e_s": "whole request",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of `octavo bench`."""

    setup: Facts
    """What was asked, of whom: names are the flags'."""
    summary: Summary
    outcomes: Sequence[Outcome]

    def latency_rows(self) -> list[tuple[str, ...]]:
        """A heading, then a row in milliseconds for each measured time."""
        rows: list[tuple[str, ...]] = [("milliseconds", "mean", "p50", "p90", "p95", "p99", "max")]
        for name, title in _SPREADS.items():
            spread: Spread = getattr(self.summary, name)
            rows.append((title, *(f"{1e3 * each:.2f}" for each in dataclasses.astuple(spread))))
        return rows

    def load_rows(self) -> list[tuple[str, str]]:
        """What was done, and how fast."""
        found = self.summary
        rows = [
            ("requests", f"{found.num_completed} of {found.num_requests} completed"),
            ("took", f"{found.duration_s:.2f} s"),
            ("requests/s", f"{found.requests_per_s:.2f}"),
            ("output tokens/s", f"{found.output_tokens_per_s:.1f}"),
            ("all tokens/s", f"{found.total_tokens_per_s:.1f}"),
            ("goodput", f"{found.goodput_per_s:.2f} requests/s ({found.num_good} requests)"),
            ("sent late", f"p99 {1e3 * found.sent_late_s.p99:.1f} ms"),
        ]
        rows += [(f"failed: {error}", str(count)) for error, count in found.errors.items()]
        return rows

    def as_text(self) -> str:
        """Two tables."""
        load, latency = self.load_rows(), self.latency_rows()
        width = max(len(title) for title, _ in load)
        lines = [f"{title:<{width}}  {value}" for title, value in load]
        lines.append("")
        for title, *values in latency:
            lines.append(f"{title:<20}" + "".join(f"{value:>10}" for value in values))
        return "\n".join(lines)

    def as_json(self) -> str:
        """Setup, numbers, and each request: for scripts that compare runs."""
        requests = [
            {
                "due_at_s": round(one.due_at, 6),
                "prompt_tokens": one.num_prompt,
                "output_tokens": one.num_tokens,
                "ttft_s": round(one.ttft_s, 6) if one.token_times else None,
                "e2e_s": round(one.e2e_s, 6),
                "error": one.error,
            }
            for one in self.outcomes
        ]
        whole = {
            "setup": dict(self.setup),
            "summary": dataclasses.asdict(self.summary),
            "requests": requests,
        }
        return json.dumps(whole, indent=1)
