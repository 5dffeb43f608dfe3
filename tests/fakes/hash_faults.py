"""What the hash-token worker does wrong on purpose. Knows no token's meaning."""

import argparse
import os
import time
from dataclasses import dataclass, field

_FOREVER_S = 3600.0


@dataclass(slots=True, kw_only=True)
class Faults:
    """Faults of one rank process; the default has none."""

    step_s: float = 0.0
    """Every step takes at least this long."""
    fail_every: int = 0
    """Rows whose digest is a multiple of this have logits that are no numbers."""
    exit_at_step: int = 0
    """The process ends, as if killed, when it is given its n-th step."""
    hang_at_step: int = 0
    """The process stops answering when it is given its n-th step."""
    raise_at_step: int = 0
    """Computing the n-th step raises."""
    _num_steps: int = field(default=0, init=False)

    def before_step(self) -> None:
        """Does what is due at this step, counted since the process began."""
        self._num_steps += 1
        if self._num_steps == self.exit_at_step:
            os._exit(1)
        if self._num_steps == self.raise_at_step:
            raise RuntimeError(f"injected at step {self._num_steps}")
        if self._num_steps == self.hang_at_step:
            time.sleep(_FOREVER_S)

    def fails(self, digest: int) -> bool:
        """Whether a row with this digest fails."""
        return self.fail_every > 0 and digest % self.fail_every == 0


def add_fault_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the faults as flags."""
    group = parser.add_argument_group("faults")
    group.add_argument("--step-ms", type=float, default=0.0, help="least time of every step")
    group.add_argument(
        "--fail-every", type=int, default=0, help="fail rows whose digest this divides"
    )
    for fault, what in (("exit", "ends"), ("hang", "hangs"), ("raise", "raises")):
        group.add_argument(
            f"--{fault}-at-step", type=int, default=0, help=f"the n-th step of a process {what}"
        )
    group.add_argument("--fault-rank", type=int, default=0, help="rank with the step faults")
    group.add_argument(
        "--fault-starts", type=int, default=1, help="how many starts of the group have step faults"
    )


def faults_of(arguments: argparse.Namespace) -> Faults:
    """The faults among a rank's parsed arguments."""
    is_due = arguments.num_restarts < arguments.fault_starts
    is_meant = is_due and arguments.rank == arguments.fault_rank
    return Faults(
        step_s=arguments.step_ms / 1000,
        fail_every=arguments.fail_every,
        exit_at_step=arguments.exit_at_step if is_meant else 0,
        hang_at_step=arguments.hang_at_step if is_meant else 0,
        raise_at_step=arguments.raise_at_step if is_meant else 0,
    )
