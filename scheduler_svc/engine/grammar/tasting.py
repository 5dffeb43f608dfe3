"""The core's side of a taster: starts it, asks it, gives it up. Used by one thread each."""

import contextlib
import logging
import select
import subprocess
import sys
from pathlib import Path

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.confined import read_frame, write_frame
from scheduler_svc.core.refusals import BadGrammar

_LOG = logging.getLogger(__name__)

TASTE_LIMIT_S = 10.0
_START_LIMIT_S = 60.0
_MODULE = "scheduler_svc.engine.grammar.taster"


class Taster:
    """Another process that compiles a grammar first; started when it is first needed."""

    def __init__(self, model_dir: Path, *, limit_s: float = TASTE_LIMIT_S) -> None:
        self._model_dir = model_dir
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        return None if self._process is None else self._process.pid

    def taste(self, grammar: engine.Grammar) -> None:
        """Returns when the grammar can be compiled here; raises BadGrammar otherwise."""
        process = self._process or self._start()
        assert process.stdin is not None, "a pipe was asked for"
        try:
            write_frame(process.stdin, grammar.SerializeToString())
        except OSError as error:
            self._give_up()
            raise BadGrammar("could not be compiled; try again") from error
        reason = self._answer(process, self._limit_s)
        if reason is None:
            raise BadGrammar("takes too long or too much memory to compile")
        if reason:
            raise BadGrammar(reason)

    def close(self) -> None:
        """Ends the process, and does so for good: none is started again. From any thread."""
        self._is_closed = True
        self._give_up()

    def _give_up(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # closes its pipes and waits for it; what it was not sent any more is lost with it
            with contextlib.suppress(BrokenPipeError), process:
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", _MODULE, str(self._model_dir)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process = process
        if self._is_closed:
            self._give_up()
            raise BadGrammar("could not be compiled: the service stops")
        if self._answer(process, _START_LIMIT_S) is None:
            raise BadGrammar("cannot be compiled: the process for it does not start")
        return process

    def _answer(self, process: subprocess.Popen[bytes], limit_s: float) -> str | None:
        """What the process says; None, and it is gone, when that takes too long or it died."""
        assert process.stdout is not None, "a pipe was asked for"
        ready, _, _ = select.select([process.stdout], [], [], limit_s)
        # what is small is written at once: a frame that begins is whole in no time
        frame = read_frame(process.stdout) if ready else None
        if frame is None:
            self._give_up()
            _LOG.warning("a grammar took too long or too much: its process was ended")
            return None
        return frame.decode()
