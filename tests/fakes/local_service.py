"""A scripted stand-in for `python -m scheduler_svc`: serves the echo model, or fails as it is told.

`python -m tests.fakes.local_service BEHAVIOUR --unix-socket PATH ...`; behaviours:
serve, refuse (bad settings), stall (never ready), deaf (ignores SIGTERM), fall (ends when called).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.inference_server import FakeInferenceServer

_LIFE_LIMIT_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Behaves as told until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("--unix-socket", type=Path, required=True)
    known, others = parser.parse_known_args(arguments)
    _log(f"started as {known.behaviour} with {' '.join(others)}")
    if known.behaviour == "refuse":
        _log("octavo serve: --block-size must be a power of two, got 3")
        return 2
    stopped = threading.Event()
    signal.signal(
        signal.SIGTERM,
        signal.SIG_IGN if known.behaviour == "deaf" else lambda *_: stopped.set(),
    )
    if known.behaviour == "stall":
        _log("loading weights, 10 %")
        stopped.wait(_LIFE_LIMIT_S)
        return 0
    with FakeInferenceServer(socket=known.unix_socket) as server:
        if known.behaviour == "fall":
            server.on_call = lambda: os.kill(os.getpid(), signal.SIGKILL)
        stopped.wait(_LIFE_LIMIT_S)
    return 0


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
