"""How `octavo top` looks: one frame from one state, with `rich`. Makes no call, has no clock.

Names and reasons come from the service: what is not printable in them is shown as "?".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from octavo.cli.top_requests import kv_map, request_table, shown
from octavo.v1 import admin_pb2 as admin

_BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known at one look."""

    state: admin.GetStateResponse
    listing: admin.ListRequestsResponse | None = None
    """What lives; None where that cannot be had."""
    looked_at: float = 0.0
    steps_per_s: float | None = None
    """None before the second look, and when the steps were counted anew between two."""
    problem: str = ""
    """Why there was no answer this time; the rest is from the last one."""

    def followed_by(
        self,
        state: admin.GetStateResponse,
        listing: admin.ListRequestsResponse | None = None,
        *,
        now: float,
    ) -> Frame:
        """The next look."""
        before, core = self.state.core, state.core
        is_same_count = core.epoch == before.epoch and core.num_steps >= before.num_steps
        passed_s = now - self.looked_at
        rate = None
        if is_same_count and passed_s > 0:
            rate = (core.num_steps - before.num_steps) / passed_s
        return Frame(state, listing, looked_at=now, steps_per_s=rate)

    def without_answer(self, problem: str) -> Frame:
        """The next look, in vain."""
        return dataclasses.replace(self, steps_per_s=None, problem=problem)


def console() -> Console:
    """Where a single frame goes."""
    return Console(highlight=False)


def live() -> Live:
    """A screen that is drawn anew only when told to."""
    return Live(console=console(), screen=True, auto_refresh=False)


def draw(frame: Frame) -> RenderableType:
    """The whole frame."""
    parts: list[RenderableType] = [_head(frame.state)]
    if frame.problem:
        parts.append(Text(f"no answer, this is the last: {shown(frame.problem)}", style="red"))
    return Group(
        *parts,
        Text(),
        _work(frame),
        Text(),
        _memory(frame.state.core),
        Text(),
        *_requests(frame),
        _processes(frame.state),
    )


def _requests(frame: Frame) -> list[RenderableType]:
    if frame.listing is None:
        return []
    core = frame.state.core
    return [kv_map(core, frame.listing), Text(), request_table(frame.listing), Text()]


def _head(state: admin.GetStateResponse) -> Text:
    head = Text()
    head.append(f"octavo {shown(state.version)}", style="bold")
    head.append(f"  {shown(state.replica) or '(no name)'}  {shown(state.model)}  ")
    if state.is_draining:
        head.append("draining", style="yellow")
    elif state.is_ready:
        head.append("ready", style="green")
    else:
        head.append(f"not ready: {shown(state.not_ready_reason)}", style="red")
    return head


def _work(frame: Frame) -> Table:
    core = frame.state.core
    table = Table.grid(padding=(0, 2))
    rate = "" if frame.steps_per_s is None else f", {frame.steps_per_s:.1f} a second"
    table.add_row("running", f"{core.num_running} sequences")
    table.add_row("waiting", f"{core.num_waiting} sequences, {core.num_waiting_tokens} tokens")
    for name, value in _speed(frame.state.traffic):
        table.add_row(name, value)
    table.add_row("steps", f"{core.num_steps} in epoch {core.epoch}{rate}")
    return table


def _speed(traffic: admin.RecentTraffic) -> list[tuple[str, str]]:
    """Nothing for a service that does not tell."""
    if not traffic.window_s:
        return []
    over = f"over {traffic.window_s:.0f} s"
    rates = (
        f"{traffic.generated_tokens_per_s:.1f} tokens/s out,"
        f" {traffic.prompt_tokens_per_s:.1f} in, {traffic.requests_per_s:.1f} requests/s, {over}"
    )
    return [
        ("speed", rates),
        ("first token", _times(traffic.time_to_first_token)),
        ("between tokens", _times(traffic.inter_token)),
    ]


def _times(times: admin.RecentTimes) -> str:
    if not times.count:
        return "-"
    return f"p50 {1e3 * times.p50_s:.1f} ms, p99 {1e3 * times.p99_s:.1f} ms"


def _memory(core: admin.CoreState) -> RenderableType:
    parts = (
        ("in use", core.num_blocks_in_use, "#", "cyan"),
        ("leaving", core.num_blocks_fenced, "~", "yellow"),
        ("cached", core.num_blocks_cached, "+", "blue"),
        ("free", core.num_blocks_free, ".", "dim"),
    )
    total = sum(count for _, count, _, _ in parts)
    if not total:
        return Text("KV blocks: none, no workers take part", style="dim")
    bar, drawn, so_far = Text("KV blocks ["), 0, 0
    for _, count, mark, style in parts:
        so_far += count
        upto = round(_BAR_WIDTH * so_far / total)
        bar.append(mark * (upto - drawn), style=style)
        drawn = upto
    bar.append(f"] {total} of {core.block_size} tokens")
    legend = Text("          ")
    for name, count, mark, style in parts:
        legend.append(f" {mark} ", style=style)
        legend.append(f"{count} {name} ")
    return Group(bar, legend)


def _processes(state: admin.GetStateResponse) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("process", "pid", "state", "restarts"):
        table.add_column(title, justify="right" if title in {"pid", "restarts"} else "left")
    for one in state.processes:
        table.add_row(
            Text(shown(one.name)),
            str(one.pid) if one.pid else "-",
            Text("up", style="green") if one.is_up else Text("down", style="red"),
            Text(str(one.num_restarts), style="yellow" if one.num_restarts else ""),
        )
    return table
