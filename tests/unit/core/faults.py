"""What a core is given by mistake, and must refuse without a trace: wrong results, ids in use. And
looks at it, which must change nothing either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from scheduler_svc.core.estimate import Question
from scheduler_svc.core.listing import Wish
from scheduler_svc.core.plan import BadResult, StepResult
from scheduler_svc.core.refusals import BodyDiffers, InvalidField
from tests.unit.core.replica import prompt_of

if TYPE_CHECKING:  # a world has its faults
    from tests.unit.core.world import World


class Faults:
    """Happenings that a world must come through unchanged."""

    def __init__(self, world: World) -> None:
        self.world = world

    def happenings(self) -> dict[Callable[[], None], int]:
        """What can happen, and how often it does."""
        return {
            self.wrong_result: 1,
            self.repeated_result: 1,
            self.result_after_the_workers: 1,
            self.result_of_an_old_epoch: 1,
            self.repeated_id: 1,
            self.repeated_number: 1,
            self.look: 1,
            self.flush: 1,
        }

    # --- results ---

    def wrong_result(self) -> None:
        world = self.world
        if world.replica.results:
            right = world.replica.results[0]
            wrong = world.random.choice(
                [
                    replace(right, step=right.step + world.random.choice([-1, 1])),
                    replace(right, tokens=np.append(right.tokens, np.int32(1))),
                    replace(right, tokens=np.append(right.tokens[:-1], world.limits.vocab_size)),
                    replace(right, failed_rows=np.array([10_000], np.int32)),
                ]
            )
            self._give(wrong, "a wrong result")

    def repeated_result(self) -> None:
        """A result that was applied before comes again."""
        if self.world.replica.results:
            result = self.world.replica.results[0]
            self.world.replica.deliver()
            self._give(result, "a result for the second time")

    def result_after_the_workers(self) -> None:
        """The workers are gone, and results of theirs arrive late."""
        late = list(self.world.replica.results)
        self.world.replica.leave_epoch()
        for result in late:
            self._give(result, "a result after the workers")
        assert self.world.replica.core.plan(self.world.replica.now) is None
        self.world.workers_return()

    def result_of_an_old_epoch(self) -> None:
        """Results of workers that died arrive after the first steps of the next ones.

        As far as the core can tell: one with the number of the oldest step is held back by the
        engine's link, which knows epochs.
        """
        late = list(self.world.replica.results)
        self.world.workers_die()
        self.world.issue()
        results = self.world.replica.results
        for result in late:
            if not results or result.step != results[0].step:
                self._give(result, "a result of an old epoch")

    def _give(self, result: StepResult, what: str) -> None:
        with self._refused(BadResult, what):
            self.world.replica.core.apply(result, self.world.replica.now)

    # --- ids ---

    def repeated_id(self) -> None:
        """The id of a known request, with another body."""
        world = self.world
        tracked = world.anyone()
        if tracked is not None and world.request_of(tracked) is not None:
            other = replace(tracked.new, owner=world.owner, number=world.next_number())
            with self._refused(BodyDiffers, "an id with another body"):
                world.replica.core.submit(replace(other, body_digest=b"other"), world.replica.now)

    def repeated_number(self) -> None:
        """Another request, under a number that its owner uses."""
        world = self.world
        tracked = world.anyone()
        if tracked is None or tracked.owner is None:
            return
        if world.replica.core._registry.owned(tracked.owner, tracked.number) is not None:
            other = replace(tracked.new, owner=tracked.owner, number=tracked.number)
            with self._refused(InvalidField, "a number in use"):
                world.replica.core.submit(replace(other, request_id="other"), world.replica.now)

    # --- looks ---

    def look(self) -> None:
        """Shows every living request once."""
        world = self.world
        core, now = world.replica.core, world.replica.now
        before = core.counts()
        listing = core.list_requests(Wish(limit=3, wants_blocks=True), now)
        orders = [view.order for view in listing.requests]
        while listing.next_after:
            wish = Wish(limit=3, after=listing.next_after, wants_blocks=True)
            listing = core.list_requests(wish, now)
            orders += [view.order for view in listing.requests]
        assert orders == sorted(set(orders))
        assert len(orders) == before.num_live == listing.num_live
        prompt = prompt_of(world.random.randint(1, 24), first=world.random.randint(0, 2))
        estimate = core.estimate(Question(tenant="a", prompt=prompt % world.limits.vocab_size))
        assert estimate.num_cached_tokens < len(prompt)
        assert estimate.num_requests_ahead <= before.num_live
        assert core.counts() == before

    def flush(self) -> None:
        """Empties the cache: what is held stays."""
        core = self.world.replica.core
        before = core.counts()
        core.flush_prefix_cache()
        after = core.counts()
        assert after.num_blocks_cached == 0
        assert after.num_blocks_free == before.num_blocks_free + before.num_blocks_cached
        assert after.num_blocks_in_use == before.num_blocks_in_use

    @contextmanager
    def _refused(self, kind: type[Exception], what: str) -> Iterator[None]:
        """What is done within raises, and leaves no trace."""
        core = self.world.replica.core
        self.world.met[what] += 1
        before = core.counts()
        try:
            yield
        except kind:
            assert core.counts() == before, f"{what} left a trace"
        else:
            raise AssertionError(f"{what} was taken")
