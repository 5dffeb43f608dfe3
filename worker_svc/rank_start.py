"""What a rank is told by the supervisor that starts it, beside the settings. Starts nothing."""

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """One rank of one start of the group."""

    group_incarnation: int
    """Random, new for each start of the group."""
    rank: int
    rendezvous: Path
    """File in which the ranks of this start find each other; nobody made it before."""
    error_file: Path
    """Where the rank leaves one line about why it ended."""
    num_restarts: int
    """How often the group was started before."""

    def to_flags(self) -> list[str]:
        """The command line that `start_of` reads back to this value."""
        return [
            f"--group-incarnation={self.group_incarnation}",
            f"--rank={self.rank}",
            f"--rendezvous={self.rendezvous}",
            f"--error-file={self.error_file}",
            f"--num-restarts={self.num_restarts}",
        ]


def add_start_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a `RankStart` to a parser."""
    parser.add_argument("--group-incarnation", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--error-file", type=Path, required=True)
    parser.add_argument("--num-restarts", type=int, default=0)


def start_of(arguments: argparse.Namespace) -> RankStart:
    """The start among parsed arguments."""
    return RankStart(
        group_incarnation=arguments.group_incarnation,
        rank=arguments.rank,
        rendezvous=arguments.rendezvous,
        error_file=arguments.error_file,
        num_restarts=arguments.num_restarts,
    )
