"""The whole core against a naive model: whatever happens, streams are those of a quiet run."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
