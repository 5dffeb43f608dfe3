"""The whole core against a naive model: whatever happens, streams are those of an undisturbed run.

The model is one function: the next token is a hash of the history. Everything else is disturbance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from xxhash import xxh3_128_digest

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy
from scheduler_svc.core.news import Accepted, Attached
from scheduler_svc.core.plan import BadResult, StepResult
from scheduler_svc.core.refusals import Refused, UnknownRequest
from scheduler_svc.core.request import EndReason, NewRequest, ResumedOutput, SamplingParams
from tests.unit.core.replica import Reader, Replica, expected_output, limits, prompt_of

VOCAB_SIZE = 40  # small, so that stop ids are met
NATURAL_ENDS = {EndReason.EOS, EndReason.STOP_TOKEN, EndReason.LENGTH}
Digest = Callable[[bytes], bytes]


def cut_digest(data: bytes) -> bytes:
    """A hash of three bits: collisions are the rule."""
    return bytes([xxh3_128_digest(data)[0] & 7])


class HidingPool(BlockPool):
    """A pool that has fewer blocks to hand out whenever it is told so."""

    num_hidden = 0

    @property
    def num_available(self) -> int:
        return max(0, super().num_available - self.num_hidden)


@dataclass
class Tracked:
    """A request, and what any reader of it has seen."""

    new: NewRequest
    expected: list[list[int]]
    seen: list[list[int]]
    owner: int | None
    number: int = 0
    is_disturbed: bool = False  # it may end by another reason than its tokens


class CoreMachine(RuleBasedStateMachine):
    """Random lives of many requests."""

    replica: Replica

    # --- beginnings ---

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(4, 16),
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.integers(1, 24),
        max_model_len=st.integers(8, 40),
        max_steps_in_flight=st.sampled_from([1, 2, 2]),
        max_prefill_chunk_tokens=st.sampled_from([0, 0, 1, 3]),
        use_prefix_cache=st.sampled_from([True, True, False]),
        digest=st.sampled_from([xxh3_128_digest, xxh3_128_digest, cut_digest]),
        max_times_passed=st.sampled_from([1, 32]),
        max_orphan_tokens=st.sampled_from([1, 5, 100]),
    )
    def begin(self, **choices: Any) -> None:
        digest: Digest = choices.pop("digest")
        names = ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens")
        names = (*names, "max_model_len")
        chosen = {name: choices.pop(name) for name in names}
        self.policy = choices
        self.digest = digest
        self.tracked: list[Tracked] = []
        self.number = 0
        self.owner = 1
        self.failing: set[int] = set()
        self.replica = Replica(
            limits(**chosen, vocab_size=VOCAB_SIZE), digest=digest, **self.policy
        )
        self.num_hidden = 0
        self.hide_blocks()

    def hide_blocks(self) -> None:
        """Puts a pool in place that can refuse."""
        epoch = self.replica.core._lifecycle.epoch
        assert epoch is not None
        if not isinstance(epoch.pool, HidingPool):
            epoch.pool.__class__ = HidingPool  # same layout, other readings
        epoch.pool.num_hidden = self.num_hidden  # type: ignore[attr-defined]  # set above

    def next_number(self) -> int:
        self.number += 1
        return self.number

    # --- arrivals ---

    @rule(
        stem=st.integers(0, 2),
        length=st.integers(1, 20),
        tenant=st.sampled_from(["a", "b"]),
        num_outputs=st.sampled_from([1, 1, 1, 2, 3]),
        max_tokens=st.sampled_from([None, 1, 3, 9]),
        min_tokens=st.sampled_from([0, 0, 1]),
        eos_token_ids=st.sampled_from([(), (3,), (3, 5)]),
        stop_token_ids=st.sampled_from([(), (11,)]),
        priority=st.sampled_from([0, 0, -1, 2]),
        keep_for_s=st.sampled_from([0.0, 1.0, 30.0]),
        reads_cache=st.sampled_from([True, True, False]),
        stores_cache=st.sampled_from([True, True, False]),
        seed=st.integers(0, 2**64 - 1),
    )
    def submit(self, stem: int, length: int, seed: int, **fields: Any) -> None:
        number = self.next_number()
        new = self.replica.new(
            prompt_of(length, first=stem) % VOCAB_SIZE,
            owner=self.owner,
            number=number,
            request_id=f"request-{number}",
            sampling=SamplingParams(seed=(seed * 4096 + number) % 2**64),  # nobody else's
            **fields,
        )
        try:
            answer = self.replica.submit(new)
        except Refused:
            return
        assert isinstance(answer, Accepted)
        expected = [
            expected_output(new, VOCAB_SIZE, answer.max_tokens, index)
            for index in range(new.num_outputs)
        ]
        seen: list[list[int]] = [[] for _ in expected]
        self.tracked.append(Tracked(new, expected, seen, self.owner, number))

    # --- steps ---

    @rule()
    def issue(self) -> None:
        self.replica.issue()

    @precondition(lambda self: self.replica.results)
    @rule()
    def deliver(self) -> None:
        self.replica.deliver()

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.replica.step()

    @rule(num_hidden=st.integers(0, 6))
    def refuse_blocks(self, num_hidden: int) -> None:
        self.num_hidden = num_hidden
        self.hide_blocks()

    # --- disturbances ---

    def pick(self, choice: int) -> Tracked | None:
        return self.tracked[choice % len(self.tracked)] if self.tracked else None

    @rule(choice=st.integers(0, 99))
    def cancel(self, choice: int) -> None:
        tracked = self.pick(choice)
        if tracked is not None:
            tracked.is_disturbed = True
            name = {"tenant": tracked.new.tenant, "request_id": tracked.new.request_id}
            self.replica.core.cancel(**name, now=self.replica.now)
            self.replica.hear()
            answer = self.replica.core.cancel(**name, now=self.replica.now)
            assert answer.was_finished or not answer.is_known

    @rule(choice=st.integers(0, 99), is_cancelled=st.booleans())
    def detach(self, choice: int, *, is_cancelled: bool) -> None:
        tracked = self.pick(choice)
        if tracked is not None and tracked.owner is not None:
            tracked.is_disturbed = True
            self.replica.core.detach(
                owner=tracked.owner,
                number=tracked.number,
                cancel=is_cancelled,
                now=self.replica.now,
            )
            tracked.owner = None

    @rule(choice=st.integers(0, 99), resubmits=st.booleans())
    def attach(self, choice: int, *, resubmits: bool) -> None:
        tracked = self.pick(choice)
        if tracked is None:
            return
        self.note_seen()
        number = self.next_number()
        place = {"owner": self.owner, "number": number}
        name = {"tenant": tracked.new.tenant, "request_id": tracked.new.request_id}
        try:
            answer = self.replica.core.attach(
                **name, **place, deadline=None, now=self.replica.now
            )
            if resubmits:  # the same request again takes it from the first attach
                number = self.next_number()
                again = replace(tracked.new, owner=self.owner, number=number)
                resubmitted = self.replica.core.submit(again, self.replica.now)
                assert isinstance(resubmitted, Attached)
                answer = resubmitted
        except UnknownRequest:
            return
        self.follow(tracked, answer, number)

    def follow(self, tracked: Tracked, answer: Attached, number: int) -> None:
        tracked.owner, tracked.number = self.owner, number
        for index, output in enumerate(answer.outputs):
            tokens = output.tokens.tolist()
            assert tokens[: len(tracked.seen[index])] == tracked.seen[index]
            self.replica.readers[self.owner, number, index] = Reader(tokens, output.end)
            if output.end is not None:
                self.replica.finish(output.end)

    @rule()
    def owner_dies(self) -> None:
        self.note_seen()
        self.replica.core.lose_owner(self.owner, self.replica.now)
        self.owner += 1
        for tracked in self.tracked:
            tracked.owner = None
            tracked.is_disturbed = True

    @rule()
    def owner_hides(self) -> None:
        self.replica.core.owner_unseen(self.owner, self.replica.now)
        self.replica.step()
        self.replica.core.owner_seen(self.owner, self.replica.now)

    @rule(choice=st.integers(0, 99), count=st.integers(0, 5))
    def stop_string(self, choice: int, count: int) -> None:
        tracked = self.pick(choice)
        if tracked is None or tracked.owner is None:
            return
        reader = self.replica.readers.get((tracked.owner, tracked.number, 0))
        if reader is not None and reader.end is None:
            tracked.is_disturbed = True
            kept = min(count, len(reader.tokens))
            self.replica.core.finish_output(
                owner=tracked.owner,
                number=tracked.number,
                output_index=0,
                num_tokens=kept,
                reason=EndReason.STOP_STRING,
                stop_string="stop",
                now=self.replica.now,
            )
            self.note_seen()
            tracked.seen[0] = reader.tokens[:kept]
            self.replica.readers.pop((tracked.owner, tracked.number, 0))
            tracked.owner = None if tracked.new.num_outputs == 1 else tracked.owner

    @rule(was_fatal=st.booleans())
    def workers_die(self, *, was_fatal: bool) -> None:
        if was_fatal:
            for tracked in self.tracked:
                tracked.is_disturbed = True
        self.replica.restart_epoch(was_fatal=was_fatal)
        self.hide_blocks()

    @rule(choice=st.integers(0, 99))
    def logits_fail(self, choice: int) -> None:
        tracked = self.pick(choice)
        if tracked is not None:
            tracked.is_disturbed = True
            self.replica.worker.failing_seeds.add(tracked.new.sampling.seed)

    @rule()
    def core_dies(self) -> None:
        """A new core; owners resubmit what they have received."""
        self.note_seen()
        old = self.replica
        self.replica = Replica(old.limits, digest=self.digest, **self.policy)
        self.replica.now = old.now
        self.replica.num_submitted = old.num_submitted
        self.replica.worker.failing_seeds = old.worker.failing_seeds
        self.hide_blocks()
        for tracked in self.tracked:
            if tracked.owner is not None:
                self.resubmit(tracked, old)

    def resubmit(self, tracked: Tracked, old: Replica) -> None:
        readers = [
            old.readers.get((tracked.owner, tracked.number, index))  # type: ignore[arg-type]  # owned
            for index in range(tracked.new.num_outputs)
        ]
        if all(reader is None or reader.end is not None for reader in readers):
            tracked.owner = None
            return
        resume = tuple(
            ResumedOutput(
                tokens=np.array(tracked.seen[index], np.int32),
                reason=EndReason.STOP_STRING if reader is None else _reason(reader),
            )
            for index, reader in enumerate(readers)
        )
        number = self.next_number()
        again = replace(
            tracked.new, owner=self.owner, number=number, resume=resume, was_accepted=True
        )
        tracked.owner, tracked.number = self.owner, number
        self.replica.submit(again)

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.replica.now += seconds
        self.replica.core.expire(self.replica.now)
        self.replica.hear()

    @rule(shift=st.sampled_from([-1, 1]))
    def wrong_result(self, shift: int) -> None:
        if self.replica.results:
            right = self.replica.results[0]
            wrong = StepResult(
                step=right.step + shift,
                tokens=right.tokens,
                token_counts=right.token_counts,
                failed_rows=right.failed_rows,
                forward_us=right.forward_us,
            )
            try:
                self.replica.core.apply(wrong, self.replica.now)
            except BadResult:
                return
            raise AssertionError("a result of another step was taken")

    # --- what must hold ---

    def note_seen(self) -> None:
        for tracked in self.tracked:
            for index in range(tracked.new.num_outputs):
                if tracked.owner is not None:
                    key = (tracked.owner, tracked.number, index)
                    reader = self.replica.readers.get(key)
                    if reader is not None:
                        seen = tracked.seen[index]
                        assert reader.tokens[: len(seen)] == seen, "what was received changed"
                        tracked.seen[index] = list(reader.tokens)

    @invariant()
    def streams_are_undisturbed(self) -> None:
        if not hasattr(self, "replica"):
            return
        self.replica.check()
        self.note_seen()
        for tracked in self.tracked:
            for index, seen in enumerate(tracked.seen):
                assert seen == tracked.expected[index][: len(seen)], tracked.new.request_id
                self.check_end(tracked, index)

    def check_end(self, tracked: Tracked, index: int) -> None:
        if tracked.owner is None:
            return
        reader = self.replica.readers.get((tracked.owner, tracked.number, index))
        if reader is not None and reader.end is not None:
            if reader.end.reason in NATURAL_ENDS:
                assert reader.tokens == tracked.expected[index]
            else:
                assert tracked.is_disturbed, f"{tracked.new.request_id} ended {reader.end}"

    def teardown(self) -> None:
        if not hasattr(self, "replica"):
            return
        self.num_hidden = 0
        self.hide_blocks()
        self.replica.run()
        self.streams_are_undisturbed()
        for tracked in self.tracked:
            if tracked.owner is not None:
                for index in range(tracked.new.num_outputs):
                    key = (tracked.owner, tracked.number, index)
                    reader = self.replica.readers.get(key)
                    assert reader is None or reader.end is not None, "an output never ended"
        self.replica.now += 1000.0
        self.replica.core.expire(self.replica.now)
        self.replica.hear()
        self.replica.check_idle()
        assert self.replica.core.counts().num_requests == 0, "a request is kept for ever"


def _reason(reader: Reader) -> EndReason | None:
    return None if reader.end is None else reader.end.reason


TestCore = CoreMachine.TestCase
TestCore.settings = settings(stateful_step_count=50)
