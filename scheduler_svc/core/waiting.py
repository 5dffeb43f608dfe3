"""Who runs next: sequences that wait, in order. Knows nothing of blocks, slots or steps.

The order: priority class, then the least-served tenant, then arrival. A sequence that has waited
for the ageing time may rise to the next more urgent class that is there, one for every so many that
leave the queue: no class starves, and a backlog of old patient work does not drown urgent work. It
never rises above the classes in the queue, so that age does not set tenants' shares aside. A
request that has not run keeps its age and the class it has risen to when it is put in anew.

Operations cost O(log n). The entry of a sequence that was removed stays behind, known by its old
ticket; it is dropped when met, or with all others when they are the majority.
"""

import heapq
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.tenants import TenantShares

# Submitted at, order of arrival, output, ticket, sequence. The ticket is unique.
_Entry = tuple[float, int, int, int, Sequence]
# One sequence may rise for so many that leave the queue.
_LEAVES_PER_RISE = 8
# Rises that may be saved up, so that no call takes long.
_MAX_RISES = 8
# Entries without a sequence that are not worth the sweep.
_MAX_LEFTOVERS = 64


@dataclass(slots=True)
class _Level:
    """One priority class."""

    by_tenant: dict[int, list[_Entry]] = field(default_factory=dict)  # heaps
    # A heap of (counter, tenant). Counters only grow, so an outdated one is met in time.
    tenants: list[tuple[float, int]] = field(default_factory=list)
    # A heap of since when, order of arrival, output, ticket, sequence.
    entered: list[_Entry] = field(default_factory=list)
    num_waiting: int = 0
    num_entries: int = 0  # in the heaps of by_tenant


class WaitingQueue:
    """Sequences that wait. Holds no sequence twice."""

    def __init__(self, shares: TenantShares, *, ageing_s: float) -> None:
        self._shares = shares
        self._ageing_s = ageing_s
        self._levels: dict[int, _Level] = {}
        self._level_by_ticket: dict[int, int] = {}
        self._last_ticket = 0
        self._num_leaves = _LEAVES_PER_RISE  # that no sequence has risen for

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._level_by_ticket)

    def push(self, sequence: Sequence, now: float) -> None:
        """Lets a sequence wait, in the class its request came with or has risen to."""
        assert not sequence.ticket, "the sequence waits already"
        request = sequence.request
        if request.start is None:
            self._enter(sequence, request.queue_class, request.in_class_since)
        else:
            self._enter(sequence, request.new.priority, now)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out."""
        self._num_leaves = min(self._num_leaves + 1, _MAX_RISES * _LEAVES_PER_RISE)
        self._take_out(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        priority = self._level_by_ticket.pop(sequence.ticket)
        sequence.ticket = 0
        level = self._levels[priority]
        level.num_waiting -= 1
        if not level.num_waiting:
            del self._levels[priority]
        elif level.num_entries > 2 * level.num_waiting + _MAX_LEFTOVERS:
            self._sweep(level)

    def walk(self) -> Generator[Sequence, None, None]:
        """Sequences in order, each once, until the iterator is closed; they go on waiting.

        Between two of them the caller may remove the one at hand and charge tenants: the order
        follows. Pushing has to wait until the iterator is closed.
        """
        met: list[tuple[int, _Entry]] = []
        try:
            while (first := self._pop_first()) is not None:
                met.append(first)
                yield first[1][-1]
        finally:
            for priority, entry in met:
                if entry[-1].ticket == entry[-2]:
                    self._insert(self._levels[priority], entry)

    def rise(self, now: float) -> None:
        """Lets sequences rise that have waited for the ageing time in their class."""
        priorities = sorted(self._levels)
        for above, priority in pairwise(priorities):
            entered = self._levels[priority].entered
            while self._may_rise and entered and entered[0][0] + self._ageing_s <= now:
                *_, ticket, sequence = heapq.heappop(entered)
                if sequence.ticket == ticket:
                    self._num_leaves -= _LEAVES_PER_RISE
                    self._take_out(sequence)
                    sequence.request.queue_class = above
                    sequence.request.in_class_since = now
                    self._enter(sequence, above, now)

    @property
    def _may_rise(self) -> bool:
        return self._num_leaves >= _LEAVES_PER_RISE

    def _enter(self, sequence: Sequence, priority: int, since: float) -> None:
        self._last_ticket += 1
        sequence.ticket = self._last_ticket
        self._level_by_ticket[sequence.ticket] = priority
        level = self._levels.setdefault(priority, _Level())
        level.num_waiting += 1
        request = sequence.request
        place = (request.order, sequence.output_index, sequence.ticket, sequence)
        heapq.heappush(level.entered, (since, *place))
        self._insert(level, (request.new.submitted_at, *place))

    def _insert(self, level: _Level, entry: _Entry) -> None:
        tenant = entry[-1].request.tenant_index
        if tenant not in level.by_tenant:
            level.by_tenant[tenant] = []
            heapq.heappush(level.tenants, (self._shares.served(tenant), tenant))
        heapq.heappush(level.by_tenant[tenant], entry)
        level.num_entries += 1

    def _pop_first(self) -> tuple[int, _Entry] | None:
        for priority in sorted(self._levels):
            entry = self._pop_first_of(self._levels[priority])
            if entry is not None:
                return priority, entry
        return None

    def _pop_first_of(self, level: _Level) -> _Entry | None:
        while level.tenants:
            counter, tenant = level.tenants[0]
            served = self._shares.served(tenant)
            entries = level.by_tenant[tenant]
            if not entries:
                heapq.heappop(level.tenants)
                del level.by_tenant[tenant]
            elif served > counter:
                heapq.heapreplace(level.tenants, (served, tenant))
            else:
                entry = heapq.heappop(entries)
                level.num_entries -= 1
                if entry[-1].ticket == entry[-2]:
                    return entry
        return None

    def _sweep(self, level: _Level) -> None:
        standing = [
            entry
            for entries in level.by_tenant.values()
            for entry in entries
            if entry[-1].ticket == entry[-2]
        ]
        level.entered = [item for item in level.entered if item[-1].ticket == item[-2]]
        heapq.heapify(level.entered)
        level.by_tenant, level.tenants, level.num_entries = {}, [], 0
        for entry in standing:
            self._insert(level, entry)
