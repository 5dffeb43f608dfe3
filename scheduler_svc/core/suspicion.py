"""Which sequences may have killed the workers, and run alone for that. Knows nothing of the queue.

A sequence that was in a step that died, and has no new token since, is under suspicion: after the
second death it runs alone until it has one, after the third its request ends. So no request takes
the service down for ever, and none ends for what another did.
"""

from scheduler_svc.core.epoch import Epoch
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence

MAX_DEATHS = 3
DEATHS_MESSAGE = f"the workers died {MAX_DEATHS} times while computing this output"


class Suspicion:
    """Sequences that have to run alone."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.alone: Sequence | None = None

    @property
    def is_open(self) -> bool:
        """Whether others may start now."""
        return not self.waiting and self.alone is None

    def note_deaths(self, epoch: Epoch) -> list[Request]:
        """Counts a death for every sequence in a step in flight; returns requests to end."""
        involved = {slot for step in epoch.in_flight for slot in step.slots.tolist()}
        doomed: dict[int, Request] = {}
        for sequence in (epoch.batch.sequences[slot] for slot in sorted(involved)):
            if sequence is not None:
                epoch.batch.store_tail(sequence)
                self._note_death(sequence)
                if sequence.num_deaths >= MAX_DEATHS:
                    doomed[sequence.request.order] = sequence.request
        return list(doomed.values())

    def clear(self, epoch: Epoch) -> Sequence | None:
        """Ends the suspicion against who runs alone once it has a new token; returns it."""
        alone = self.alone
        if alone is None or int(epoch.batch.known_length[alone.slot]) <= alone.num_tokens_at_death:
            return None
        alone.num_deaths = 0
        self.alone = None
        return alone

    @staticmethod
    def _note_death(sequence: Sequence) -> None:
        if sequence.num_stored > sequence.num_tokens_at_death:
            sequence.num_deaths = 0
        sequence.num_deaths += 1
        sequence.num_tokens_at_death = sequence.num_stored
