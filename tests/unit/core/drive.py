"""Random lives around the core by the million, on all processors; any one is played again by seed.

    python -m tests.unit.core.drive --transitions 200000
    python -m tests.unit.core.drive --first-seed 1234 --lives 1     # play one again

The same seed is the same life, whatever runs beside it. Knows no pytest.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random

from tests.unit.core.world import World

LIFE = 400  # transitions
_LIVES_A_TASK = 25


class LifeFailed(AssertionError):
    """A life broke a rule; the text says how to play it again."""


@dataclass(frozen=True, slots=True)
class Driven:
    """What was done."""

    num_lives: int
    num_transitions: int
    seconds: float


def live(seed: int) -> int:
    """One life; returns its transitions. Raises LifeFailed."""
    try:
        World(Random(seed)).drive(LIFE)
    except Exception as error:
        again = f"python -m tests.unit.core.drive --first-seed {seed} --lives 1"
        raise LifeFailed(f"seed {seed}: {type(error).__name__}: {error}; again: {again}") from error
    return LIFE


def drive(seeds: Iterable[int]) -> Driven:
    """Lives of all seeds. Raises LifeFailed for the first one that fails."""
    began = time.monotonic()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(live, seeds, chunksize=_LIVES_A_TASK))
    return Driven(len(counts), sum(counts), time.monotonic() - began)


def main() -> None:
    """Drives and says how much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=0)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--lives", type=int, help="seeds to play, one after the other")
    amount.add_argument("--transitions", type=int, default=200_000)
    options = parser.parse_args()
    num_lives = options.lives or -(-options.transitions // LIFE)
    driven = drive(range(options.first_seed, options.first_seed + num_lives))
    sys.stdout.write(
        f"{driven.num_transitions:,} transitions in {driven.num_lives:,} lives,"
        f" {driven.seconds:.0f} s: every rule held\n"
    )


if __name__ == "__main__":
    main()
