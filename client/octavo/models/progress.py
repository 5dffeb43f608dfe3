"""How long work tells its progress. Knows nothing of terminals."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often while a model is fetched and prepared; must return quickly."""

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Report that `done_bytes` of `total_bytes` (0 = not known) of `stage` are done.

        Stages are "wait" (another process is at work), "download", "verify", "extract" and
        "convert". The last call of a stage has `done_bytes == total_bytes`, except for "wait".
        """


def no_progress(stage: str, done_bytes: int, total_bytes: int) -> None:
    """Report to nobody."""
