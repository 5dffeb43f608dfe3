"""Random lives of many requests around a core, and what must hold all the time.

The model is one function: the next token is a hash of the history. Everything that happens here is
disturbance, and must not show in any stream. Choices come from a `random.Random`, so a life can be
played again from its seed, or be drawn and made smaller by hypothesis.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from xxhash import xxh3_128_digest

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.news import Accepted, Attached, OutputEnd
from scheduler_svc.core.refusals import (
    QueueFull,
    Refused,
    UnknownRequest,
)
from scheduler_svc.core.request import (
    EndReason,
    NewRequest,
    Request,
    ResumedOutput,
    SamplingParams,
)
from scheduler_svc.core.sequence import Phase
from tests.unit.core.faults import Faults
from tests.unit.core.replica import Reader, Replica, expected_output, limits, prompt_of

VOCAB_SIZE = 40  # small, so that stop ids are met
NATURAL_ENDS = {EndReason.EOS, EndReason.STOP_TOKEN, EndReason.LENGTH}


def cut_digest(data: bytes) -> bytes:
    """A hash of three bits: collisions are the rule."""
    return bytes([xxh3_128_digest(data)[0] & 7])


class HidingPool(BlockPool):
    """A pool that has fewer blocks to hand out whenever it is told so."""

    num_hidden = 0
    num_refused = 0

    @property
    def num_available(self) -> int:
        return max(0, super().num_available - self.num_hidden)

    def take(self, count: int) -> list[int] | None:
        blocks = super().take(count)
        self.num_refused += blocks is None and count <= super().num_available
        return blocks


@dataclass
class Tracked:
    """A request, and what any reader of it has seen."""

    new: NewRequest
    expected: list[list[int]]
    seen: list[list[int]]
    owner: int | None
    number: int
    ended: dict[int, EndReason] = field(default_factory=dict)  # by output
    is_disturbed: bool = False  # it may end by another reason than its tokens
    is_cut: bool = False  # its first output was ended by its owner


class World:
    """A replica, its owners, and everything that befalls them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        pick = random.choice
        self.limits = limits(
            block_size=pick([1, 2, 4]),
            num_blocks=random.randint(4, random.choice([16, 48])),
            max_num_seqs=random.randint(1, 6),
            max_num_batched_tokens=random.randint(1, 24),
            max_model_len=random.randint(8, 40),
            vocab_size=VOCAB_SIZE,
        )
        self.policy: dict[str, Any] = {
            "max_steps_in_flight": pick([1, 2, 2]),
            "max_prefill_chunk_tokens": pick([0, 0, 1, 3]),
            "use_prefix_cache": pick([True, True, False]),
            "max_times_passed": pick([1, 32]),
            "max_orphan_tokens": pick([1, 5, 100]),
            "max_queue_requests": pick([2, 12, 12, 1000]),
            "max_retained_tokens": pick([0, 50, 1_000_000]),
            "ageing_s": pick([0.05, 30.0]),
            "max_queue_s": pick([0.0, 0.0, 3.0]),
            "digest": pick([xxh3_128_digest, xxh3_128_digest, cut_digest]),
        }
        self.weights = {"a": 1.0, "b": pick([0.5, 1.0, 1.0, 4.0])}
        # How often blocks are refused: now and then, or anew for each plan.
        self.is_flaky = random.random() < 0.25
        self.met: Counter[str] = Counter()  # which disturbances there were
        self.accepted: list[Request] = []  # by the core that lives
        self.tracked: list[Tracked] = []
        self.faults = Faults(self)
        self.number = 0
        self.owner = 1
        self.num_hidden = 0
        self.replica = self.new_replica()
        self.hide_blocks()

    def drive(self, num_transitions: int) -> None:
        """Lets so many things happen, then everything end."""
        happenings: list[Callable[[], None]] = []
        for happening, weight in self.happenings().items():
            happenings += [happening] * weight
        for _ in range(num_transitions):
            self.random.choice(happenings)()
            self.check()
        self.come_to_rest()

    def happenings(self) -> dict[Callable[[], None], int]:
        """What can happen, and how often it does.

        Each life has its own lot of disturbances: many that leave nobody time to run hide each
        other.
        """
        disturbances = {
            self.refuse_blocks: 2,
            self.cancel: 2,
            self.detach: 1,
            self.attach: 2,
            self.resume_elsewhere: 1,
            self.owner_dies: 1,
            self.owner_hides: 1,
            self.stop_string: 2,
            self.workers_die: 1,
            self.logits_fail: 1,
            self.core_dies: 1,
            self.time_passes: 2,
            **self.faults.happenings(),
        }
        lot = {
            each: weight * self.random.choice([0, 1, 2]) for each, weight in disturbances.items()
        }
        num_submits = self.random.choice([6, 12, 24])
        return {self.submit: num_submits, self.issue: 20, self.deliver: 20, self.steps: 24, **lot}

    # --- arrivals ---

    def submit(self) -> None:
        random, pick = self.random, self.random.choice
        number = self.next_number()
        tenant = pick(["a", "b"])
        longest = pick([24, max(1, self.limits.max_sequence_tokens * 2 // 3)])
        new = self.replica.new(
            prompt_of(random.randint(1, longest), first=random.randint(0, 2)) % VOCAB_SIZE,
            owner=self.owner,
            number=number,
            request_id=f"request-{number}",
            tenant=tenant,
            tenant_weight=self.weights[tenant],
            num_outputs=pick([1, 1, 1, 2, 3]),
            max_tokens=pick([None, 1, 3, 9]),
            eos_token_ids=pick([(), (3,), (3, 5)]),
            stop_token_ids=pick([(), (11,)]),
            min_tokens=pick([0, 0, 1]),
            priority=pick([0, 0, -1, 2]),
            keep_for_s=pick([0.0, 1.0, 30.0]),
            reads_cache=pick([True, True, False]),
            stores_cache=pick([True, True, False]),
            sampling=SamplingParams(seed=number),
        )
        try:
            answer = self.replica.submit(new)
        except Refused:
            return
        assert isinstance(answer, Accepted)
        self.note_accepted(new)
        expected = [
            expected_output(new, VOCAB_SIZE, answer.max_tokens, index)
            for index in range(new.num_outputs)
        ]
        seen: list[list[int]] = [[] for _ in expected]
        self.tracked.append(Tracked(new, expected, seen, self.owner, number))

    # --- steps ---

    def issue(self) -> None:
        self.replica.issue()
        epoch = self.replica.core._lifecycle.epoch
        leaving = [] if epoch is None else [gone for gone in epoch.departures if gone.sequence]
        if leaving and self.random.random() < 0.5:
            self.cancel()  # a moment that is met too rarely by chance

    def deliver(self) -> None:
        if self.replica.results:
            self.met["a result while another step runs"] += len(self.replica.results) > 1
            self.replica.deliver()

    def steps(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.replica.step()

    def refuse_blocks(self) -> None:
        self.num_hidden = self.random.choice([0, 0, 1, 6])
        self.hide_blocks()

    def time_passes(self) -> None:
        self.replica.now += self.random.choice([0.5, 5.0, 40.0])
        self.replica.core.expire(self.replica.now)
        self.replica.hear()

    # --- owners ---

    def cancel(self) -> None:
        rare = self.anyone_in(Phase.LEAVING) or self.anyone_in(Phase.RUNNING, Phase.HELD)
        tracked = self.random.choice([self.anyone(), rare])
        if tracked is not None:
            tracked.is_disturbed = True
            request = self.request_of(tracked)
            phases = [] if request is None else [each.phase.value for each in request.sequences]
            self.met.update(f"cancelled while {phase}" for phase in phases or ["unknown"])
            name = {"tenant": tracked.new.tenant, "request_id": tracked.new.request_id}
            self.replica.core.cancel(**name, now=self.replica.now)
            again = self.replica.core.cancel(**name, now=self.replica.now)
            assert again.was_finished or not again.is_known
            self.replica.hear()

    def detach(self) -> None:
        tracked = self.anyone()
        if tracked is not None and tracked.owner is not None:
            tracked.is_disturbed = True
            self.note_seen()
            self.replica.core.detach(
                owner=tracked.owner,
                number=tracked.number,
                cancel=self.random.random() < 0.3,
                now=self.replica.now,
            )
            tracked.owner = None
            self.replica.hear()

    def attach(self) -> None:
        tracked = self.anyone()
        if tracked is None:
            return
        self.note_seen()
        number = self.next_number()
        try:
            answer = self.replica.core.attach(
                tenant=tracked.new.tenant,
                request_id=tracked.new.request_id,
                owner=self.owner,
                number=number,
                deadline=None,
                now=self.replica.now,
            )
        except UnknownRequest:
            return
        self.follow(tracked, answer, number)

    def resume_elsewhere(self) -> None:
        """The same request again, with more tokens than the core may have."""
        tracked = self.anyone()
        if tracked is None or tracked.owner is None or tracked.is_cut or tracked.is_disturbed:
            return
        self.note_seen()
        resume = []
        for index, seen in enumerate(tracked.seen):
            more = tracked.expected[index][: len(seen) + self.random.randint(0, 3)]
            is_whole = len(more) == len(tracked.expected[index])
            ahead = more[:-1] if is_whole and len(more) > len(seen) else more
            resume.append(ResumedOutput(tokens=np.array(ahead, np.int32)))
        number = self.next_number()
        again = replace(tracked.new, owner=self.owner, number=number, resume=tuple(resume))
        try:
            answer = self.replica.core.submit(again, self.replica.now)
        except QueueFull:
            return
        if isinstance(answer, Attached):
            self.follow(tracked, answer, number)
        else:  # it was forgotten: it runs anew
            self.note_accepted(tracked.new)
            tracked.owner, tracked.number = self.owner, number
            for index, output in enumerate(resume):
                self.replica.readers[self.owner, number, index] = Reader(output.tokens.tolist())
            self.replica.hear()

    def owner_dies(self) -> None:
        self.note_seen()
        self.replica.core.lose_owner(self.owner, self.replica.now)
        self.owner += 1
        for tracked in self.tracked:
            tracked.owner = None
            tracked.is_disturbed = True

    def owner_hides(self) -> None:
        self.replica.core.owner_unseen(self.owner, self.replica.now)
        for _ in range(self.random.randint(0, 6)):
            self.replica.step()
        self.replica.core.owner_seen(self.owner, self.replica.now)

    def stop_string(self) -> None:
        tracked = self.anyone()
        if tracked is None or tracked.owner is None:
            return
        reader = self.replica.readers.get((tracked.owner, tracked.number, 0))
        if reader is None or reader.end is not None:
            return
        tracked.is_cut = tracked.is_disturbed = True
        self.note_seen()
        kept = self.random.randint(0, len(reader.tokens))
        self.replica.core.finish_output(
            owner=tracked.owner,
            number=tracked.number,
            output_index=0,
            num_tokens=kept,
            reason=EndReason.STOP_STRING,
            stop_string="stop",
            now=self.replica.now,
        )
        tracked.seen[0] = reader.tokens[:kept]
        tracked.ended[0] = EndReason.STOP_STRING
        del self.replica.readers[tracked.owner, tracked.number, 0]
        self.replica.hear()

    # --- failures ---

    def workers_die(self) -> None:
        was_fatal = self.random.random() < 0.5
        for tracked in self.tracked:
            tracked.is_disturbed |= was_fatal
        self.replica.restart_epoch(was_fatal=was_fatal)
        self.hide_blocks()

    def workers_return(self) -> None:
        self.replica.worker.begin_epoch()
        self.replica.core.start_epoch(self.limits, self.replica.now)
        self.replica.hear()
        self.hide_blocks()

    def logits_fail(self) -> None:
        tracked = self.anyone()
        if tracked is not None:
            tracked.is_disturbed = True
            self.replica.worker.failing_seeds.add(tracked.new.sampling.seed)

    def core_dies(self) -> None:
        """A new core: owners submit again, with what they have received."""
        self.note_seen()
        old = self.replica
        self.note_refused_blocks()
        self.replica = self.new_replica()
        self.accepted = []
        self.replica.now = old.now
        self.replica.num_submitted = old.num_submitted
        self.replica.worker.failing_seeds = old.worker.failing_seeds
        self.hide_blocks()
        for tracked in self.tracked:
            if tracked.owner is not None:
                self.submit_again(tracked)

    def submit_again(self, tracked: Tracked) -> None:
        if len(tracked.ended) == tracked.new.num_outputs:
            tracked.owner = None
            return
        resume = tuple(
            ResumedOutput(tokens=np.array(seen, np.int32), reason=tracked.ended.get(index))
            for index, seen in enumerate(tracked.seen)
        )
        number = self.next_number()
        tracked.owner, tracked.number = self.owner, number
        self.replica.submit(
            replace(tracked.new, owner=self.owner, number=number, resume=resume, was_accepted=True)
        )
        self.note_accepted(tracked.new)
        for index in tracked.ended:
            del self.replica.readers[self.owner, number, index]

    # --- what must hold ---

    def check(self) -> None:
        """What holds after everything that happens; only what is new is compared."""
        self.replica.check()
        if self.replica.referee:
            self.replica.referee.check_books()
        self.note_seen()

    def note_seen(self) -> None:
        """Takes note of what readers have; it goes on where it was, as in a quiet run."""
        for tracked in self.tracked:
            if tracked.owner is None:
                continue
            for index, seen in enumerate(tracked.seen):
                reader = self.reader(tracked, index)
                if reader is None:
                    continue
                if len(reader.tokens) != len(seen):
                    self.check_tokens(tracked, index, reader)
                    tracked.seen[index] = list(reader.tokens)
                if reader.end is not None and index not in tracked.ended:
                    self.check_end(tracked, index, reader.end)
                    tracked.ended[index] = reader.end.reason

    def check_all(self) -> None:
        """Compares everything anew."""
        for tracked in self.tracked:
            for index in range(tracked.new.num_outputs):
                reader = self.reader(tracked, index)
                if reader is not None:
                    self.check_tokens(tracked, index, reader)
                    assert reader.end is not None, "an output never ended"
                    self.check_end(tracked, index, reader.end)

    @staticmethod
    def check_tokens(tracked: Tracked, index: int, reader: Reader) -> None:
        seen, name = tracked.seen[index], tracked.new.request_id
        assert reader.tokens[: len(seen)] == seen, "what was received changed"
        expected = tracked.expected[index][: len(reader.tokens)]
        assert reader.tokens == expected, f"{name} was disturbed"

    def check_end(self, tracked: Tracked, index: int, end: OutputEnd) -> None:
        if end.reason is EndReason.QUEUE_TIME:
            assert self.policy["max_queue_s"], "it waited too long where nobody can"
            tracked.is_disturbed = True
        elif end.reason in NATURAL_ENDS:
            assert end.num_tokens == len(tracked.expected[index]), "it ended too early or too late"
        else:
            assert tracked.is_disturbed, f"{tracked.new.request_id} ended {end}"

    def come_to_rest(self) -> None:
        """Everything that lives ends, and nothing is left over."""
        self.note_refused_blocks()
        self.is_flaky, self.num_hidden = False, 0
        self.hide_blocks()
        self.replica.run(10_000)
        self.check()
        self.check_all()
        self.replica.now += 1000.0
        self.replica.core.expire(self.replica.now)
        self.replica.hear()
        self.replica.check_idle()
        for request in self.accepted:
            assert all(each.end is not None for each in request.sequences), "an output is lost"
        assert self.replica.core.counts().num_requests == 0, "a request is kept for ever"
        assert self.replica.core.counts().num_retained_tokens == 0

    # --- within ---

    def anyone(self) -> Tracked | None:
        """Some request, more likely a young one."""
        if not self.tracked:
            return None
        return self.random.choice(self.tracked[-8:])

    def anyone_in(self, *phases: Phase) -> Tracked | None:
        """A request with an output in one of these phases."""
        found = [
            tracked
            for tracked in self.tracked
            if (request := self.request_of(tracked)) is not None
            and any(each.phase in phases for each in request.sequences)
        ]
        return self.random.choice(found) if found else None

    def request_of(self, tracked: Tracked) -> Request | None:
        """The core's own record, while it has one."""
        return self.replica.core._registry.find(tracked.new.tenant, tracked.new.request_id)

    def new_replica(self) -> Replica:
        replica = Replica(self.limits, weights=self.weights, **self.policy)
        replica.before_plan = self.before_plan
        return replica

    def before_plan(self) -> None:
        if self.is_flaky:
            self.refuse_blocks()

    def note_accepted(self, new: NewRequest) -> None:
        request = self.replica.core._registry.find(new.tenant, new.request_id)
        if request is not None:  # it may have ended and be forgotten at once
            self.accepted.append(request)

    def note_refused_blocks(self) -> None:
        epoch = self.replica.core._lifecycle.epoch
        if epoch is not None and isinstance(epoch.pool, HidingPool):
            self.met["blocks refused"] += epoch.pool.num_refused

    def reader(self, tracked: Tracked, index: int) -> Reader | None:
        if tracked.owner is None:
            return None
        return self.replica.readers.get((tracked.owner, tracked.number, index))

    def follow(self, tracked: Tracked, answer: Attached, number: int) -> None:
        """The request's new owner takes over what there is."""
        tracked.owner, tracked.number = self.owner, number
        for index, output in enumerate(answer.outputs):
            tokens = output.tokens.tolist()
            assert tokens[: len(tracked.seen[index])] == tracked.seen[index]
            self.replica.readers[self.owner, number, index] = Reader(tokens, output.end)
            if output.end is not None:
                self.replica.finish(output.end)
        self.replica.hear()

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def hide_blocks(self) -> None:
        epoch = self.replica.core._lifecycle.epoch
        assert epoch is not None
        epoch.pool.__class__ = HidingPool  # the same blocks, other readings
        epoch.pool.num_hidden = self.num_hidden  # type: ignore[attr-defined]  # HidingPool has it
