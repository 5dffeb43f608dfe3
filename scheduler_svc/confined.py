"""A process of its own for work that may not end: its bounds, and frames between it and its parent.

A frame is its length in eight bytes, then the bytes. Knows nothing of the work.
"""

import os
import resource
import struct
from pathlib import Path
from typing import IO

# such work may take seconds: whoever waits for a token comes first
_NICENESS = 5
_LENGTH = struct.Struct("<Q")


def confine(max_more_bytes: int) -> None:
    """Lets this process grow by so much from what it has, behind those that serve streams."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = num_pages * resource.getpagesize() + max_more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.nice(_NICENESS)


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Writes and flushes one frame."""
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None when the other side has ended, in the middle of one too."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    return None if len(content) < length else content
