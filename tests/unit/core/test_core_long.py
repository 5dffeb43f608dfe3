"""Ten million transitions of the core, by seeds that anybody can play again."""

import pytest

from tests.unit.core.drive import LIFE, LifeFailed, drive, live
from tests.unit.core.world import World

NUM_TRANSITIONS = 10_000_000
# In ranges of seeds, so that a run that was cut can go on: ARGS='-k from_12000'
_LIVES_A_RANGE = 1_000
_FIRST_SEEDS = range(0, NUM_TRANSITIONS // LIFE, _LIVES_A_RANGE)


@pytest.mark.long("core")
@pytest.mark.parametrize("first_seed", _FIRST_SEEDS, ids=lambda seed: f"from_{seed}")
def test_ten_million_transitions_break_no_rule(first_seed: int) -> None:
    driven = drive(range(first_seed, first_seed + _LIVES_A_RANGE))
    assert driven.num_transitions * len(_FIRST_SEEDS) == NUM_TRANSITIONS


def test_a_life_that_fails_says_how_to_play_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(world: World) -> None:
        raise AssertionError("a rule")

    monkeypatch.setattr(World, "check", check)
    with pytest.raises(LifeFailed, match=r"seed 7: AssertionError: a rule; .*--first-seed 7 "):
        live(7)


def test_a_seed_is_always_the_same_life(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[object]] = []
    original = World.check
    for _ in range(2):
        happened: list[object] = []

        def check(world: World, into: list[object] = happened) -> None:
            original(world)
            into.append((world.replica.core.counts(), world.replica.now))

        with monkeypatch.context() as patch:
            patch.setattr(World, "check", check)
            live(3)
        seen.append(happened)
    assert len(seen[0]) > LIFE
    assert seen[0] == seen[1]
