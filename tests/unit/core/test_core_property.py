"""The whole core against a naive model: whatever happens, streams are those of an undisturbed run."""

import os
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.world import World

NUM_LIVES = 60 if os.environ.get("HYPOTHESIS_PROFILE") != "long" else 5000


@settings(max_examples=60 if settings.default and settings.default.max_examples <= 100 else 2000)
@given(st.randoms(use_true_random=False))
def test_disturbances_never_show_in_a_stream(random: Random) -> None:
    World(random).drive(40)


@pytest.mark.property
@pytest.mark.parametrize("seed", range(NUM_LIVES))
def test_long_lives_end_in_rest(seed: int) -> None:
    World(Random(seed)).drive(300)
