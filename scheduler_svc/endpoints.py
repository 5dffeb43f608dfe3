"""Where the processes of one replica meet: the sockets in its run folder. Opens nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Endpoints:
    """ZeroMQ addresses in a run folder; docs/decisions/0001-contracts.md says who speaks where."""

    run_dir: Path

    @property
    def control(self) -> str:
        """Supervisor <-> core and frontends."""
        return f"ipc://{self.run_dir}/control.sock"

    @property
    def engine(self) -> str:
        """Core <-> frontends."""
        return f"ipc://{self.run_dir}/engine.sock"

    @property
    def steps(self) -> str:
        """Core <-> worker ranks."""
        return f"ipc://{self.run_dir}/steps.sock"

    @property
    def workers(self) -> str:
        """Core <-> the worker supervisor."""
        return f"ipc://{self.run_dir}/workers.sock"
