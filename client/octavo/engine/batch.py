"""Waits for many jobs at once behind a progress bar. Knows nothing of services or clients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Protocol

from octavo.engine.meter import Meter
from octavo.results import Generation

_REDRAW_EVERY_S = 0.5


class Bar(Protocol):
    """What is used of a tqdm bar."""

    def update(self, n: float = 1) -> bool | None:
        """Moves it by n."""

    def refresh(self) -> None:
        """Draws it again."""

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:  # noqa: FBT001, FBT002
        """Sets the text behind it."""


def wait_for_all(
    futures: Sequence[Future[Generation]], *, meter: Meter, use_tqdm: bool
) -> list[Generation]:
    """The results in the order of the futures; the first error ends all of them and is raised."""
    place = {future: index for index, future in enumerate(futures)}
    waiting = set(futures)
    try:
        with _bar(len(futures), use_tqdm=use_tqdm) as bar:
            while waiting:
                done, waiting = wait(waiting, _REDRAW_EVERY_S, return_when=FIRST_EXCEPTION)
                for future in sorted(done, key=place.__getitem__):
                    _raise_if_failed(future, place[future])
                _move(bar, len(done), meter)
    finally:
        for future in futures:
            future.cancel()
    return [future.result() for future in futures]


def _move(bar: Bar | None, num_done: int, meter: Meter) -> None:
    if bar is None:
        return
    bar.set_postfix_str(meter.text(), refresh=False)
    if not bar.update(num_done) and sys.stderr.isatty():
        bar.refresh()  # the rates changed


def _raise_if_failed(future: Future[Generation], index: int) -> None:
    error = future.exception()
    if error is not None:
        error.add_note(f"This was prompt {index} of the batch; the others were cancelled.")
        raise error


def _bar(total: int, *, use_tqdm: bool) -> AbstractContextManager[Bar | None]:
    if not (use_tqdm and find_spec("tqdm")):
        return nullcontext()
    # an optional package
    from tqdm import tqdm  # noqa: PLC0415

    return tqdm(total=total, desc="Generating", unit="prompt", dynamic_ncols=True)
