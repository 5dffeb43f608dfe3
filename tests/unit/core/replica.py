"""A core with a paged worker and its owners' readers, for tests. Checks what must always hold.

Results can be kept back, so that steps overlap as in the real service.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import NO_OWNER, Accepted, Attached, OutputEnd, RequestStart, StepNews
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.request import EndReason, NewRequest, SamplingParams
from scheduler_svc.core.sequence import Phase
from tests.unit.core.paged_worker import PagedWorker, next_token
from tests.unit.core.referee import Referee

OWNER = 1
VOCAB_SIZE = 50_000


def limits(**changes: int) -> WorkerLimits:
    """Limits of a small rank group."""
    usual = {
        "num_blocks": 65,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 512,
        "vocab_size": VOCAB_SIZE,
    }
    return WorkerLimits(**(usual | changes))


def prompt_of(num_tokens: int, *, first: int = 1) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A prompt; another `first` makes another one from the first token on."""
    return (np.arange(num_tokens, dtype=np.int32) * 7 + first * 1009) % VOCAB_SIZE


def expected_output(new: NewRequest, vocab_size: int, max_tokens: int, index: int = 0) -> list[int]:
    """What an undisturbed run of an output generates."""
    seed = new.sampling.seed
    if index:
        seed = xxh3_64_intdigest(seed.to_bytes(8, "little") + index.to_bytes(4, "little"))
    stops = new.eos_token_ids + new.stop_token_ids
    history: list[int] = new.prompt.tolist()
    for count in range(max_tokens):
        token = next_token(
            history,
            seed=seed,
            vocab_size=vocab_size,
            stop_token_ids=stops,
            min_position=len(new.prompt) + new.min_tokens,
        )
        history.append(token)
        if token in stops and count >= new.min_tokens:
            break
    return history[len(new.prompt) :]


@dataclass
class Reader:
    """What an owner has received of an output."""

    tokens: list[int] = field(default_factory=list)
    end: OutputEnd | None = None


class Replica:
    """Everything around a core that a test needs."""

    def __init__(
        self,
        worker_limits: WorkerLimits | None = None,
        *,
        digest: Callable[[bytes], bytes] = xxh3_128_digest,
        settles: bool = True,
        weights: dict[str, float] | None = None,
        **policy: Any,
    ) -> None:
        """With the tenants' weights, a referee watches the order of starts."""
        self.now = 100.0
        self.settles = settles
        self.core = Core(Policy(**policy), cache_root=b"root", digest=digest)
        self.limits = worker_limits or limits()
        self.worker = PagedWorker(self.limits)
        self.results: deque[StepResult] = deque()
        self.readers: dict[tuple[int, int, int], Reader] = {}
        self.ends: list[OutputEnd] = []
        self.starts: list[RequestStart] = []
        self.plans: list[StepPlan] = []
        # Slots and blocks that each step in flight may touch.
        self.touched: deque[tuple[set[int], set[int]]] = deque()
        self.num_submitted = 0
        self.referee = Referee(self.core, self.worker, weights) if weights else None
        self.before_plan: Callable[[], None] = lambda: None
        self.core.start_epoch(self.limits, self.now)

    # --- intake ---

    def new(self, prompt: Any = None, **fields: Any) -> NewRequest:
        """A request with usual fields."""
        self.num_submitted += 1
        tokens = prompt_of(10) if prompt is None else prompt
        usual: dict[str, Any] = {
            "tenant": "tenant",
            "request_id": f"request-{self.num_submitted}",
            "owner": OWNER,
            "number": self.num_submitted,
            "blob": b"blob",
            "body_digest": b"digest",
            "prompt": np.asarray(tokens, np.int32),
            "max_tokens": 8,
            "sampling": SamplingParams(seed=self.num_submitted),
            "submitted_at": self.now,
        }
        return NewRequest(**(usual | fields))

    def submit(self, new: NewRequest) -> Accepted | Attached:
        """Submits, and gives its outputs readers."""
        answer = self.core.submit(new, self.now)
        for index in range(new.num_outputs):
            reader = Reader()
            if isinstance(answer, Attached):
                reader.tokens = answer.outputs[index].tokens.tolist()
                reader.end = answer.outputs[index].end
            elif new.resume:
                reader.tokens = new.resume[index].tokens.tolist()
            if not new.is_detached:
                self.readers[new.owner, new.number, index] = reader
        self.hear()
        return answer

    def add(self, prompt: Any = None, **fields: Any) -> NewRequest:
        """Submits a request with usual fields."""
        new = self.new(prompt, **fields)
        self.submit(new)
        return new

    # --- steps ---

    def issue(self) -> StepPlan | None:
        """Plans a step if the core can, and lets the worker run it; the result waits."""
        if not self.core.can_plan:
            return None
        self.before_plan()
        before = self.referee.look(self.now) if self.referee else None
        plan = self.core.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.results.append(self.worker.run(plan))
            slots = set(plan.slots.tolist())
            blocks = {block for slot in slots for block in self.worker.slots[slot].table}
            self.touched.append((slots, blocks))
        if self.referee and before:
            self.referee.judge(before, self.now)
        self.check()
        return plan

    def deliver(self) -> None:
        """Applies the oldest result."""
        news = self.core.apply(self.results.popleft(), self.now)
        self.touched.popleft()
        self.read(news)
        self.check()

    def step(self) -> None:
        """Plans as far ahead as the core may, then applies one result."""
        self.now += 0.01
        self.core.expire(self.now)
        while self.issue() is not None:
            pass
        if self.results:
            self.deliver()
        self.hear()

    def run(self, most: int = 2000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(most):
            if not self.core.has_work and not self.results:
                return
            self.step()
        raise AssertionError(f"still at work after {most} steps: {self.core.counts()}")

    def restart_epoch(self, *, was_fatal: bool = False) -> None:
        """Loses the workers and gets them back."""
        self.leave_epoch(was_fatal=was_fatal)
        self.worker.begin_epoch()
        self.core.start_epoch(self.limits, self.now)
        self.hear()
        self.check()

    def leave_epoch(self, *, was_fatal: bool = False) -> None:
        """Loses the workers."""
        self.core.leave_epoch(self.now, was_fatal=was_fatal)
        self.results.clear()
        self.touched.clear()

    # --- owners ---

    def hear(self) -> None:
        """Takes ends and starts in."""
        self.read(self.core.take_news())

    def read(self, news: StepNews) -> None:
        """Gives news to the readers; tokens must follow each other without gap or repeat."""
        rows = news.rows
        columns = (rows.owners, rows.numbers, rows.output_indexes, rows.first_token_indexes)
        for owner, number, index, first, token in zip(
            *(column.tolist() for column in columns), rows.tokens.tolist(), strict=True
        ):
            if owner != NO_OWNER:
                reader = self.readers[owner, number, index]
                assert first == len(reader.tokens), "tokens follow each other"
                assert reader.end is None, "nothing comes after the end"
                reader.tokens.append(token)
        self.starts += news.starts
        for end in news.ends:
            self.ends.append(end)
            if end.owner != NO_OWNER:
                reader = self.readers[end.owner, end.number, end.output_index]
                assert reader.end is None, "an output ends once"
                assert end.num_tokens == len(reader.tokens), "all tokens came before the end"
                reader.end = end
                if self.settles:
                    self.finish(end)

    def finish(self, end: OutputEnd, **changes: Any) -> None:
        """The owner's word on an end."""
        said = replace(end, **changes)
        self.core.finish_output(
            owner=said.owner,
            number=said.number,
            output_index=said.output_index,
            num_tokens=said.num_tokens,
            reason=said.reason,
            stop_string=said.message if said.reason is EndReason.STOP_STRING else "",
            now=self.now,
        )

    def reader(self, new: NewRequest, index: int = 0) -> Reader:
        """What was received of a request's output."""
        return self.readers[new.owner, new.number, index]

    def tokens(self, new: NewRequest, index: int = 0) -> list[int]:
        """Tokens received."""
        return self.reader(new, index).tokens

    def reason(self, new: NewRequest, index: int = 0) -> EndReason | None:
        """How the output ended."""
        end = self.reader(new, index).end
        return None if end is None else end.reason

    # --- what must always hold ---

    def check(self) -> None:
        """Looks inside: blocks are in one state each, held by who says so, writable or findable."""
        epoch = self.core._lifecycle.epoch
        if epoch is None:
            return
        pool, batch = epoch.pool, epoch.batch
        pool.check()
        holders: dict[int, int] = {}
        for sequence in batch.occupied():
            for block in sequence.blocks:
                holders[block] = holders.get(block, 0) + 1
            if sequence.phase is Phase.RUNNING:
                position = int(batch.next_position[sequence.slot])
                for block in sequence.blocks[position // epoch.limits.block_size :]:
                    assert not pool.cache.is_findable(block), "a writable block can be found"
                    assert holders[block] == 1, "a writable block has two holders"
        in_pool = {block: count for block, count in enumerate(pool._holders) if count}
        assert in_pool == holders, "blocks are held by others than say so"
        fenced = [block for gone in epoch.departures for block in gone.blocks]
        assert sum(pool._fences) == len(fenced), "fences and departures differ"
        for slots, blocks in self.touched:
            assert not slots & set(batch._free_slots), "a slot in flight is free"
            assert all(pool._holders[block] or pool._fences[block] for block in blocks), (
                "a block in flight can be handed out"
            )
        occupied = {sequence.slot for sequence in batch.occupied()}
        occupied |= {gone.slot for gone in epoch.departures}
        assert len(occupied) == batch.num_occupied, "slots are lost"

    def check_idle(self) -> None:
        """Nothing is left over once all is done."""
        counts = self.core.counts()
        assert not self.core.has_work
        assert counts.num_live == 0
        assert counts.num_running == 0
        assert counts.num_waiting == 0
        assert counts.num_waiting_tokens == 0
        assert counts.num_blocks_in_use == 0
        assert counts.num_blocks_fenced == 0
        assert counts.num_blocks_cached + counts.num_blocks_free == counts.num_blocks
        epoch = self.core._lifecycle.epoch
        assert epoch is not None
        assert not epoch.batch.num_watchers.any()
        assert not epoch.prefilling
