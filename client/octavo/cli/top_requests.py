"""How `octavo top` shows requests and the KV blocks they hold, with `rich`. Makes no call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octavo.v1 import admin_pb2 as admin

_MAP_WIDTH, _MAP_HEIGHT = 64, 8
_MAX_ROWS = 12
_MAX_NAME = 24
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
_PHASES = {
    admin.OUTPUT_PHASE_WAITING: "waits",
    admin.OUTPUT_PHASE_PREFILL: "prefill",
    admin.OUTPUT_PHASE_DECODE: "decode",
    admin.OUTPUT_PHASE_ENDED: "ended",
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """Some blocks beside each other."""

    num_blocks: int
    num_held: int
    holder: int
    """The place in the list of the request that holds most of them; -1: nobody holds any."""


def kv_map(core: admin.CoreState, listing: admin.ListRequestsResponse) -> RenderableType:
    """Which blocks are held, by whom: one mark for a block, or for some beside each other."""
    total = (
        core.num_blocks_in_use
        + core.num_blocks_cached
        + core.num_blocks_fenced
        + core.num_blocks_free
    )
    if not total:
        return Text()
    per_cell = -(-total // (_MAP_WIDTH * _MAP_HEIGHT))
    drawn = Text()
    for place, cell in enumerate(_cells(listing, total, per_cell)):
        if place and not place % _MAP_WIDTH:
            drawn.append("\n")
        if not cell.num_held:
            drawn.append(".", style="dim")
            continue
        drawn.append(_mark(cell), style=_colour(cell.holder))
    unit = "a block" if per_cell == 1 else f"{per_cell} blocks"
    legend = f"each mark is {unit}: # all held, = half and more, - some, . free or cached"
    if listing.next_after:
        legend += "\nthere are more holders than can be shown"
    return Group(Text("KV map"), drawn, Text(legend, style="dim"))


def request_table(listing: admin.ListRequestsResponse) -> RenderableType:
    """The oldest requests, one line for each output that has not ended."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("request", "tenant", "age", "does", "prompt", "cached", "output", "blocks"):
        is_text = title in {"request", "tenant", "does"}
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True)
    num_rows = 0
    for place, request in enumerate(listing.requests):
        for output in request.outputs:
            if output.phase == admin.OUTPUT_PHASE_ENDED:
                continue
            num_rows += 1
            if num_rows <= _MAX_ROWS:
                table.add_row(*_row(place, request, output))
    if not num_rows:
        return Text("no request lives", style="dim")
    if num_rows <= _MAX_ROWS and not listing.next_after:
        return table
    return Group(table, Text(f"{listing.num_live_requests} requests live", style="dim"))


def _mark(cell: _Cell) -> str:
    if cell.num_held == cell.num_blocks:
        return "#"
    return "=" if 2 * cell.num_held >= cell.num_blocks else "-"


def _row(
    place: int, request: admin.RequestState, output: admin.OutputState
) -> tuple[Text | str, ...]:
    name = request.request_id if output.index == 0 else f"{request.request_id}#{output.index}"
    does = _PHASES.get(output.phase, "?")
    if output.wait_reason:
        reason = admin.WaitReason.Name(output.wait_reason).removeprefix("WAIT_REASON_").lower()
        does = f"waits: {reason}"
    return (
        Text(shown(name, _MAX_NAME), style=_colour(place)),
        Text(shown(request.tenant, _MAX_NAME)),
        f"{request.age_s:.1f} s",
        does,
        str(request.prompt_tokens),
        str(request.cached_tokens),
        str(output.num_tokens),
        str(output.num_blocks),
    )


def _cells(listing: admin.ListRequestsResponse, total: int, per_cell: int) -> Iterator[_Cell]:
    holders: list[Counter[int]] = [Counter() for _ in range(-(-total // per_cell))]
    held: list[set[int]] = [set() for _ in holders]
    for place, request in enumerate(listing.requests):
        for output in request.outputs:
            for block in output.block_ids:
                cell = (block - 1) // per_cell  # block 0 belongs to nobody
                if 0 <= cell < len(holders):
                    holders[cell][place] += 1
                    held[cell].add(block)
    for number, (counts, blocks) in enumerate(zip(holders, held, strict=True)):
        most = counts.most_common(1)
        size = min(per_cell, total - number * per_cell)
        yield _Cell(size, len(blocks), most[0][0] if most else -1)


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def shown(text: str, limit: int = 0) -> str:
    """The text with what is not printable as "?", cut to the limit."""
    safe = "".join(character if character.isprintable() else "?" for character in text)
    return safe if not limit or len(safe) <= limit else f"{safe[: limit - 1]}…"
