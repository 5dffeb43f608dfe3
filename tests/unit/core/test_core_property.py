"""The whole core against a naive model: whatever happens, streams are those of a quiet run."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.sequence import Phase
from tests.unit.core.world import World

# 100 in everyday runs, thousands in long ones.
NUM_LIVES = settings().max_examples


@given(st.randoms(use_true_random=False))
def test_disturbances_never_show_in_a_stream(random: Random) -> None:
    World(random).drive(40)


@pytest.mark.property
@pytest.mark.parametrize("seed", range(NUM_LIVES))
def test_busy_lives_come_to_rest(seed: int) -> None:
    """BM-01, BM-06, PC-02, PC-04, PC-05, PC-10, PR-03, PR-04, PR-06: no token changes, no leak."""
    World(Random(seed)).drive(400)


def test_lives_meet_every_disturbance() -> None:
    """What the model says it withstands has happened in it."""
    met: Counter[str] = Counter()
    for seed in range(25):
        world = World(Random(seed))
        world.drive(400)
        met += world.met
    assert met.keys() >= {f"cancelled while {phase.value}" for phase in Phase}
    assert met.keys() >= {
        "a number in use",
        "a result after the workers",
        "a result for the second time",
        "a result of an old epoch",
        "a result while another step runs",
        "a wrong result",
        "an id with another body",
        "blocks refused",
        "cancelled while unknown",
    }
