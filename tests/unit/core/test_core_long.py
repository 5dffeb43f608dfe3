"""Ten million transitions of the core, by seeds that anybody can play again."""

import pytest

from tests.unit.core.drive import LIFE, LifeFailed, drive, live
from tests.unit.core.world import World

NUM_TRANSITIONS = 10_000_000


@pytest.mark.long("core")
def test_ten_million_transitions_break_no_rule() -> None:
    driven = drive(range(NUM_TRANSITIONS // LIFE))
    assert driven.num_transitions == NUM_TRANSITIONS


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
