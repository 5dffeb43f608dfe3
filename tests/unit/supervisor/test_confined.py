"""Frames between a confined process and its parent, and the bounds it is given."""

import io
import os
import resource
import subprocess
import sys

import pytest

from scheduler_svc.confined import read_frame, write_frame

CHILD = """
import os, resource
from scheduler_svc.confined import confine
before = os.nice(0)
confine(64 * 2**20)
print(os.nice(0) > before, resource.getrlimit(resource.RLIMIT_AS)[0] < 2**40)
try:
    bytearray(256 * 2**20)
except MemoryError:
    print("refused")
print(len(bytearray(2**20)))
"""


@pytest.mark.parametrize("contents", [[b""], [b"a", b"", b"bc" * 70_000]])
def test_frames_come_as_they_were_written_and_then_the_end(contents: list[bytes]) -> None:
    stream = io.BytesIO()
    for content in contents:
        write_frame(stream, content)
    stream.seek(0)
    assert [read_frame(stream) for _ in contents] == contents
    assert read_frame(stream) is None


@pytest.mark.parametrize("length", [1, 7, 8, 9, 12])
def test_a_frame_that_breaks_off_is_no_frame(length: int) -> None:
    stream = io.BytesIO()
    write_frame(stream, b"reason")
    assert read_frame(io.BytesIO(stream.getvalue()[:length])) is None


def test_a_confined_process_steps_back_and_cannot_grow() -> None:
    limit_here = resource.getrlimit(resource.RLIMIT_AS)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "refused", str(2**20)]
    assert resource.getrlimit(resource.RLIMIT_AS) == limit_here
