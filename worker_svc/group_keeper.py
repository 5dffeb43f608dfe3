"""Which rank group runs now, and when the next one starts. Knows no socket and no signal handler.

All times are the caller's clock, in seconds.
"""

import logging
import os
import secrets
from collections.abc import Sequence

from octavo.internal.v1 import control_pb2
from worker_svc.backoff import Backoff
from worker_svc.config import WorkerConfig
from worker_svc.rank_folder import RankFolder
from worker_svc.rank_start import RankStart
from worker_svc.ranks import RankGroup
from worker_svc.threads import threads_per_rank

_LOGGER = logging.getLogger(__name__)

# what a stopped rank gets to end by itself
STOP_LIMIT_S = 2.0


class GroupKeeper:
    """Starts a group, and another one after each death, until it is stopped or that is no use."""

    def __init__(
        self, config: WorkerConfig, *, rank_command: Sequence[str], folder: RankFolder
    ) -> None:
        self.permanent_error = ""
        self._config = config
        self._rank_command = rank_command
        self._folder = folder
        self._backoff = Backoff()
        self._group: RankGroup | None = None
        self._num_starts = 0
        self._started_at = 0.0
        self._start_due_at = 0.0
        self._kill_due_at: float | None = None
        self._last_death = ""
        self._is_stopping = False

    @property
    def is_over(self) -> bool:
        """Whether no rank runs and none will."""
        return self._group is None and (self._is_stopping or bool(self.permanent_error))

    def tick(self, now: float) -> None:
        """Notices deaths, kills, starts: whatever is due."""
        if self._group is not None:
            self._watch(self._group, now)
        elif not self.is_over and now >= self._start_due_at:
            self._start(now)

    def due_at(self) -> float | None:
        """When `tick` has something to do even if no rank ends; None: nothing."""
        if self._group is not None:
            return self._kill_due_at
        return None if self.is_over else self._start_due_at

    def kill(self, incarnation: int, reason: str) -> None:
        """Kills this group, to be started again; nothing happens when another one runs."""
        if self._group is not None and self._group.incarnation == incarnation:
            self._group.kill(f"killed by the core: {reason}")

    def stop(self, now: float) -> None:
        """Asks the ranks to end, for good; a second call kills them."""
        if self._group is not None and self._is_stopping:
            self._group.kill("killed by a second order to stop")
        elif self._group is not None:
            self._group.terminate()
            self._kill_due_at = now + STOP_LIMIT_S
        self._is_stopping = True

    def abandon(self) -> None:
        """Kills what runs, without a look back."""
        if self._group is not None:
            self._group.kill("abandoned")

    def state(self, now: float) -> control_pb2.GroupState:
        """What the core is told."""
        group = self._group
        is_waiting = group is None and not self.is_over
        return control_pb2.GroupState(
            group_incarnation=0 if group is None else group.incarnation,
            pids=[] if group is None else group.pids(),
            num_restarts=max(0, self._num_starts - 1),
            backoff_ms=round(1000 * max(0.0, self._start_due_at - now)) if is_waiting else 0,
            last_death=self._last_death,
            permanent_error=self.permanent_error,
        )

    def _start(self, now: float) -> None:
        incarnation = secrets.randbits(64) | 1
        starts = [
            RankStart(
                group_incarnation=incarnation,
                rank=rank,
                rendezvous=self._folder.rendezvous(incarnation),
                error_file=self._folder.error_file(incarnation, rank),
                num_restarts=self._num_starts,
            )
            for rank in range(self._config.tensor_parallel_size)
        ]
        self._started_at = now
        self._num_starts += 1
        try:
            self._group = RankGroup.spawn(
                self._rank_command,
                starts,
                flags=self._config.to_flags(),
                environment=self._rank_environment(),
            )
        except OSError as error:
            self._back_off(f"a rank could not be started: {error}", now)
        else:
            _LOGGER.info("started rank processes %s", self._group.pids())

    def _rank_environment(self) -> dict[str, str]:
        """Libraries read how many threads they may have, and how to wait, when they load.

        Waiting threads sleep: where other work shares the cores, threads that spin instead slow a
        step ten times and more (docs/performance.md).
        """
        config = self._config
        threads = threads_per_rank(config.cpu_threads, num_ranks=config.tensor_parallel_size)
        waiting = {"OMP_WAIT_POLICY": "PASSIVE"}
        return {**waiting, **os.environ, "OMP_NUM_THREADS": str(threads)}

    def _watch(self, group: RankGroup, now: float) -> None:
        group.reap()
        is_overdue = self._kill_due_at is not None and now >= self._kill_due_at
        if is_overdue or (group.first_death and not self._is_stopping):
            group.kill("killed: it did not end in time")
        if group.is_over:
            self._bury(group, now)

    def _bury(self, group: RankGroup, now: float) -> None:
        self._group, self._kill_due_at = None, None
        self._folder.forget(group.incarnation)
        if self._is_stopping:
            return
        if group.permanent_error:
            self._last_death = group.first_death
            self.permanent_error = group.permanent_error
            _LOGGER.error("giving up: %s", group.permanent_error)
        else:
            self._back_off(group.first_death, now)

    def _back_off(self, death: str, now: float) -> None:
        self._last_death = death
        delay_s = self._backoff.delay_after(now - self._started_at)
        self._start_due_at = now + delay_s
        _LOGGER.warning("%s; the group starts again in %.1f s", death, delay_s)
