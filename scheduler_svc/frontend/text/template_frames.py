"""What a frontend and the process that renders its chats tell each other: frames of JSON."""

from __future__ import annotations

import json
from typing import IO, Any

from scheduler_svc import confined

Frame = dict[str, Any]


def write_frame(stream: IO[bytes], frame: Frame) -> None:
    """Writes and flushes one frame."""
    confined.write_frame(stream, json.dumps(frame).encode("ascii"))


def read_frame(stream: IO[bytes]) -> Frame | None:
    """The next frame; None when the other side has ended."""
    body = confined.read_frame(stream)
    if body is None:
        return None
    frame: Frame = json.loads(body)
    return frame
