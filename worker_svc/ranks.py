"""The processes of one start of the rank group: begun and ended together. Restarts nothing."""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from worker_svc.process import PERMANENT_EXIT, child_environment
from worker_svc.rank_start import RankStart

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rank:
    start: RankStart
    process: "subprocess.Popen[bytes]"


class RankGroup:
    """Ranks that share one incarnation. `reap` learns of deaths; nothing here waits."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.first_death = ""
        """The first end of a rank, in words; empty while all run."""
        self.permanent_error = ""
        """What no restart can mend, in words of the rank that said so."""
        self._ranks: list[_Rank] = []
        self._ended: set[int] = set()

    @classmethod
    def spawn(
        cls,
        command: Sequence[str],
        starts: Sequence[RankStart],
        *,
        flags: Sequence[str],
        environment: Mapping[str, str],
    ) -> Self:
        """Starts one process per rank: the command, its start's flags, then `flags`.

        Main thread only. Raises OSError when a process cannot be started; none is left then.
        """
        group = cls(starts[0].group_incarnation)
        try:
            for start in starts:
                group._begin(start, [*command, *start.to_flags(), *flags], environment)
        except OSError:
            group.kill("not all ranks could be started")
            group._wait()
            raise
        return group

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended and was noticed."""
        return len(self._ended) == len(self._ranks)

    def pids(self) -> list[int]:
        """Process id by rank; 0 for one that has ended."""
        return [0 if r.start.rank in self._ended else r.process.pid for r in self._ranks]

    def reap(self) -> None:
        """Notices which ranks have ended."""
        for rank in self._ranks:
            number = rank.start.rank
            status = None if number in self._ended else rank.process.poll()
            if status is not None:
                self._ended.add(number)
                self._note_end(rank, status)

    def kill(self, reason: str) -> None:
        """Kills what still runs, at once: survivors may spin on the device.

        `reason` is the group's death, unless a rank died before.
        """
        self.first_death = self.first_death or reason
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Asks what still runs to end."""
        self._signal(signal.SIGTERM)

    def _begin(
        self, start: RankStart, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=child_environment(environment),
            # Ctrl-C in a terminal passes the ranks by: the supervisor ends them
            start_new_session=True,
        )
        self._ranks.append(_Rank(start, process))

    def _note_end(self, rank: _Rank, status: int) -> None:
        word = _read_word(rank.start.error_file)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        death = f"rank {rank.start.rank} ended with {how}" + (f": {word}" if word else "")
        _LOGGER.debug("%s", death)
        self.first_death = self.first_death or death
        if status == PERMANENT_EXIT and not self.permanent_error:
            self.permanent_error = word or death

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            if rank.process.poll() is None:
                os.kill(rank.process.pid, number)

    def _wait(self) -> None:
        for rank in self._ranks:
            rank.process.wait()


def _read_word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
