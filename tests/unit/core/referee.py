"""Watches from outside whether a core starts sequences in the order it promises, with accounts of
its own.

Who computed what is read from the worker. What must hold of each plan:

- a tenant's counter grows by the tokens computed for it, by its weight, and by nothing else;
- who starts stands first in the queue, but for those it passes: more urgent classes first, then the
  tenant served least, then arrival;
- who is passed is passed at most so often, and not by a tenant that is far ahead of its own;
- so the counters of tenants that both wait stay within a bound;
- within one tenant and class no request waits behind more than so many later arrivals.

And at any time each living sequence is in the one place its phase says.

Counters move while a plan is made, by at most one step's tokens: so much slack there is.
"""

from collections import Counter
from dataclasses import dataclass
from math import isclose

from scheduler_svc.core.core import Core
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Phase, Sequence
from tests.unit.core.paged_worker import PagedWorker


@dataclass(frozen=True)
class Place:
    """Where a sequence stood in the queue before a plan."""

    sequence: Sequence
    priority: int
    tenant: str
    num_times_passed: int
    may_rise: bool  # has waited long enough to stand in another class when the plan is made

    @property
    def arrival(self) -> tuple[float, int, int]:
        request = self.sequence.request
        return (request.new.submitted_at, request.order, self.sequence.output_index)


@dataclass(frozen=True)
class Scene:
    """What was so before a plan."""

    places: list[Place]
    served: dict[str, float]
    num_computed: dict[int, int]
    begun: set[int]  # orders of requests
    is_open: bool  # nobody has to run alone


class Referee:
    """Judges the plans of one core."""

    def __init__(self, core: Core, worker: PagedWorker, weights: dict[str, float]) -> None:
        self.core = core
        self.worker = worker
        self.weights = weights
        self.num_passed: dict[int, int] = {}  # later arrivals that began before, by order
        self.tenants: dict[int, str] = {}  # by the seed of who was computed for
        self.leads: dict[tuple[str, str], float] = {}  # when both began to wait

    def look(self, now: float) -> Scene:
        """What is so now."""
        return Scene(
            places=self._places(now),
            served=self._served(),
            num_computed=dict(self.worker.num_computed),
            begun={request.order for request in self._living() if request.start is not None},
            is_open=self.core._lifecycle.room.suspicion.is_open,
        )

    def judge(self, before: Scene, now: float) -> None:
        """Compares what a plan did with what was before."""
        served = self._served()
        self._judge_charges(before, served)
        started = [
            place
            for place in before.places
            if place.sequence.phase is Phase.RUNNING and not place.sequence.ticket
        ]
        left = [place for place in before.places if place.sequence.ticket]
        for first in started:
            for other in left:
                self._judge_order(first, other, before.served, served)
        self._judge_passes(before)
        self._judge_leads(before, served, now)

    def check_books(self) -> None:
        """Each sequence that lives is in one place, each that has ended has ended once."""
        core, room = self.core, self.core._lifecycle.room
        places: Counter[Phase] = Counter()
        unbegun: list[Request] = []
        for request in self._living():
            phases = [sequence.phase for sequence in request.sequences]
            num_ended = phases.count(Phase.ENDED)
            assert request.num_live == len(phases) - num_ended, "an output ends twice or never"
            assert num_ended == sum(each.end is not None for each in request.sequences)
            places.update(phases)
            if request.start is None:
                unbegun.append(request)
        counts, epoch = core.counts(), core._lifecycle.epoch
        assert places[Phase.WAITING] == counts.num_waiting, "who waits stands in the queue"
        slots = [] if epoch is None else [each.phase for each in epoch.batch.occupied()]
        for phase in (Phase.RUNNING, Phase.LEAVING):
            assert places[phase] == slots.count(phase), "who runs has a slot"
        assert room.census.num_requests == len(unbegun)
        assert counts.num_waiting_tokens == sum(len(each.new.prompt) for each in unbegun)

    # --- within ---

    @property
    def _slack(self) -> float:
        limits = self.worker.limits
        return limits.max_num_batched_tokens / min(self.weights.values())

    def _judge_charges(self, before: Scene, served: dict[str, float]) -> None:
        expected = dict(before.served)
        for seed, count in self.worker.num_computed.items():
            num_new = count - before.num_computed.get(seed, 0)
            if num_new:
                tenant = self._tenant_of(seed)
                expected[tenant] += num_new / self.weights[tenant]
        assert served.keys() == expected.keys()
        for tenant, counter in served.items():
            assert isclose(counter, expected[tenant]), "tenants are charged what is computed"

    def _tenant_of(self, seed: int) -> str:
        if seed not in self.tenants:
            for request in self._living():
                for sequence in request.sequences:
                    self.tenants[sequence.sampling.seed] = request.new.tenant
        return self.tenants[seed]

    def _judge_order(
        self,
        first: Place,
        other: Place,
        before: dict[str, float],
        after: dict[str, float],
    ) -> None:
        """One has started, another still waits."""
        if first.may_rise or other.may_rise:
            return
        lead = before[first.tenant] - after[other.tenant]
        if other.sequence.num_times_passed > other.num_times_passed:
            is_far_ahead = lead > self.worker.limits.max_sequence_tokens + self._slack
            assert not is_far_ahead or first.priority < other.priority, (
                "a tenant that is far ahead has passed another"
            )
        elif other.priority != first.priority:
            assert first.priority < other.priority, "a more urgent sequence was left waiting"
        elif other.tenant != first.tenant:
            assert lead <= self._slack, "a tenant served less was left waiting"
        else:
            assert first.arrival < other.arrival, "an earlier arrival was left waiting"

    def _judge_passes(self, before: Scene) -> None:
        most = self.core._policy.max_times_passed
        living = self._living()
        begun = [each for each in living if each.start and each.order not in before.begun]
        waiting = {each.order: each for each in living if each.start is None}
        self.num_passed = {order: self.num_passed.get(order, 0) for order in waiting}
        for order, request in waiting.items():
            self.num_passed[order] += sum(_is_later(other, request) for other in begun)
            assert self.num_passed[order] <= most, "a request waits behind too many later ones"

    def _judge_leads(self, before: Scene, served: dict[str, float], now: float) -> None:
        """While two tenants wait in the most urgent class, no counter runs away from the other."""
        places = self._places(now)
        first = min((place.priority for place in places), default=0)
        waiting = {place.tenant for place in places if place.priority == first}
        is_urgent = any(place.priority < first for place in before.places)
        if is_urgent or not before.is_open:
            self.leads.clear()  # somebody was served whatever the counters
        limits = self.worker.limits
        most = limits.max_num_seqs * limits.max_sequence_tokens / min(self.weights.values())
        pairs = {(a, b) for a in waiting for b in waiting if a != b}
        leads = {(a, b): served[a] - served[b] for a, b in pairs}
        self.leads = {pair: self.leads.get(pair, lead) for pair, lead in leads.items()}
        for pair, lead in leads.items():
            allowed = max(self.leads[pair], limits.max_sequence_tokens + self._slack)
            assert lead <= allowed + most, "two tenants wait, and one is served all the time"

    def _living(self) -> list[Request]:
        return self.core._registry.living()

    def _served(self) -> dict[str, float]:
        shares = self.core._lifecycle.shares
        return {tenant: shares.served(index) for tenant, index in shares._index_by_tenant.items()}

    def _places(self, now: float) -> list[Place]:
        queue = self.core._lifecycle.room.queue
        entered = (entry for level in queue._levels.values() for entry in level.entered)
        since = {entry[-2]: entry[0] for entry in entered}
        return [
            Place(
                sequence=sequence,
                priority=queue._level_by_ticket[sequence.ticket],
                tenant=request.new.tenant,
                num_times_passed=sequence.num_times_passed,
                may_rise=since.get(sequence.ticket, 0.0) + queue._ageing_s <= now,
            )
            for request in self._living()
            for sequence in request.sequences
            if sequence.ticket
        ]


def _is_later(other: Request, request: Request) -> bool:
    """Whether a request came after another of its tenant and class, and is no older."""
    return (
        (other.new.tenant, other.new.priority) == (request.new.tenant, request.new.priority)
        and other.order > request.order
        and other.new.submitted_at >= request.new.submitted_at
    )
