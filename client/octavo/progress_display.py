"""Shows on stderr how far long work is: a moving bar where that can be drawn, else plain lines.

Knows nothing of the work. Draws bars with `rich` when it is installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_EVERY_S = 5.0


class Display(Protocol):
    """Takes news of work; one stage follows the other."""

    def bytes_done(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """`done_bytes` of `total_bytes` (0: not known) of a stage are done."""

    def line(self, stage: str, text: str) -> None:
        """The newest word of a stage that has no measure."""


@contextmanager
def display_progress(*, to: TextIO | None = None) -> Iterator[Display]:
    """A display that is taken away when the block ends."""
    stream = to or sys.stderr
    if not (stream.isatty() and find_spec("rich")):
        yield PlainDisplay(stream, clock=time.monotonic)
        return
    # an optional package
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    whole, cut = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=whole),
        BarColumn(bar_width=12),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False, table_column=cut),
    )
    console = Console(file=stream)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        yield RichDisplay(progress)


class PlainDisplay:
    """Lines: one when a stage begins, one every few seconds while it lasts, one when it is done."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._stage = ""
        self._is_done = False
        self._written_at = 0.0

    def bytes_done(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Writes the share that is done."""
        is_done = 0 < total_bytes <= done_bytes
        if is_done and stage == self._stage and self._is_done:
            return
        self._write(stage, _amount(done_bytes, total_bytes), is_due=is_done)
        self._is_done = is_done

    def line(self, stage: str, text: str) -> None:
        """Writes the text."""
        self._write(stage, text, is_due=False)

    def _write(self, stage: str, text: str, *, is_due: bool) -> None:
        now = self._clock()
        if stage == self._stage and not is_due and now - self._written_at < _LINE_EVERY_S:
            return
        self._stage, self._written_at = stage, now
        self._stream.write(f"{stage}: {text}\n" if text else f"{stage} ...\n")
        self._stream.flush()


class RichDisplay:
    """One bar with a spinner for each stage; finished stages stay until the display goes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def bytes_done(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Moves the stage's bar."""
        self._progress.update(
            self._task(stage),
            completed=done_bytes,
            total=total_bytes or None,
            note=_amount(done_bytes, total_bytes),
        )

    def line(self, stage: str, text: str) -> None:
        """Shows the text beside the stage's spinner."""
        self._progress.update(self._task(stage), note=text)

    def _task(self, stage: str) -> TaskID:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=None, note="")
        return self._tasks[stage]


def _amount(done_bytes: int, total_bytes: int) -> str:
    if not total_bytes:
        return f"{done_bytes / 1e6:.0f} MB" if done_bytes else ""
    return f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB"
