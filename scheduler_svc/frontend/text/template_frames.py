"""Frames between a frontend and the process that renders its chats: a length, then JSON."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

Frame = dict[str, Any]
_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], frame: Frame) -> None:
    """Writes and flushes one frame."""
    body = json.dumps(frame).encode("ascii")
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Frame | None:
    """The next frame; None when the other side has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        return None
    frame: Frame = json.loads(body)
    return frame
