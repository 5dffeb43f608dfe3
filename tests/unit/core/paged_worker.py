"""A rank for tests of the core: takes plans, answers with tokens. Computes no model.

It keeps token ids where a real rank keeps keys and values, and draws the next token as a hash of
the history that it finds through the slot's block table. So whatever goes wrong with blocks,
positions or tokens changes the output. It is strict: a plan against the step protocol raises.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from xxhash import xxh3_64_intdigest

from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import SlotStart, StepPlan, StepResult


class PlanBroken(AssertionError):
    """A plan breaks the step protocol."""


def require(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not holds:
        raise PlanBroken(rule)


def next_token(
    history: list[int],
    *,
    seed: int,
    vocab_size: int,
    stop_token_ids: tuple[int, ...] = (),
    min_position: int = 0,
) -> int:
    """The token after a history: a hash of it, and of the seed."""
    data = np.array(history, np.int32).tobytes() + seed.to_bytes(8, "little")
    token = xxh3_64_intdigest(data) % vocab_size
    if len(history) < min_position:
        while token in stop_token_ids:
            token = (token + 1) % vocab_size
    return token


@dataclass
class Slot:
    """A place in the resident batch."""

    start: SlotStart
    table: list[int] = field(default_factory=list)
    next_position: int = 0
    last_token: int | None = None  # None: its latest row did not sample
    is_placed: bool = False  # has had a row since its start


class PagedWorker:
    """A rank group of one."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.slots: dict[int, Slot] = {}
        self.cells: dict[tuple[int, int], int] = {}  # (block, offset) -> token id
        self.generations: dict[int, int] = {}
        self.last_step = 0
        self.num_computed: Counter[int] = Counter()  # tokens, by the seed of who they are for
        self.failing_seeds: set[int] = set()  # rows of these samplings have no logits

    def begin_epoch(self) -> None:
        """Drops the batch; contents of blocks count as lost."""
        self.slots.clear()
        self.cells.clear()
        self.generations.clear()
        self.last_step = 0

    def run(self, plan: StepPlan) -> StepResult:
        """Executes a plan."""
        require(plan.step == self.last_step + 1, "steps come in order")
        self.last_step = plan.step
        self._check_shape(plan)
        for start in plan.starts:
            self._start(start, plan)
        for slot, index, block in zip(
            plan.new_block_slots.tolist(),
            plan.new_block_indexes.tolist(),
            plan.new_block_ids.tolist(),
            strict=True,
        ):
            require(1 <= block < self.limits.num_blocks, "block ids are in range")
            require(index == len(self.slots[slot].table), "block tables only grow")
            self.slots[slot].table.append(block)
        rows = self._rows(plan)
        self._check_sum(plan, [(slot, start) for slot, start, _, _ in rows])
        for slot, first, tokens, _ in rows:
            self._write(slot, first, tokens)
        return self._sample(plan, rows)

    # --- within ---

    def _check_shape(self, plan: StepPlan) -> None:
        num_rows = len(plan.slots)
        require(num_rows > 0, "a plan has rows")
        require(len(set(plan.slots.tolist())) == num_rows, "no slot twice")
        require(num_rows <= self.limits.max_num_seqs, "rows fit the batch")
        chunk_rows = plan.chunk_rows.tolist()
        first = num_rows - len(chunk_rows)
        require(chunk_rows == list(range(first, num_rows)), "steady rows come first")
        num_tokens = first + int(plan.chunk_num_tokens.sum())
        require(num_tokens <= self.limits.max_num_batched_tokens, "tokens fit the step")
        require(len(plan.chunk_tokens) == plan.chunk_num_tokens.sum(), "chunks bring tokens")
        require(plan.num_decode_rows == first, "decode rows are counted")
        for column in (plan.slots, plan.chunk_rows, plan.chunk_tokens, plan.new_block_ids):
            require(column.dtype == np.int32, "columns are int32")

    def _start(self, start: SlotStart, plan: StepPlan) -> None:
        require(start.generation > self.generations.get(start.slot, 0), "generations rise")
        chunked = plan.slots[plan.chunk_rows].tolist()
        require(start.slot in chunked, "a start has a chunk row")
        self.generations[start.slot] = start.generation
        self.slots[start.slot] = Slot(start)

    def _rows(self, plan: StepPlan) -> list[tuple[int, int, list[int], bool]]:
        """Slot, first position, tokens, whether it samples."""
        rows: list[tuple[int, int, list[int], bool]] = []
        for number in plan.slots[: plan.num_decode_rows].tolist():
            slot = self.slots[number]
            require(slot.last_token is not None, "a steady row continues a sampling one")
            assert slot.last_token is not None
            rows.append((number, slot.next_position, [slot.last_token], True))
        offset = 0
        for chunk, row in enumerate(plan.chunk_rows.tolist()):
            number, count = int(plan.slots[row]), int(plan.chunk_num_tokens[chunk])
            slot = self.slots[number]
            start = int(plan.chunk_start_positions[chunk])
            require(count > 0, "a chunk has tokens")
            require(slot.start.generation == plan.chunk_generations[chunk], "generations agree")
            if slot.is_placed:
                require(start == slot.next_position, "chunks follow each other")
            tokens = plan.chunk_tokens[offset : offset + count].tolist()
            rows.append((number, start, tokens, bool(plan.chunk_samples[chunk])))
            offset += count
        return rows

    def _check_sum(self, plan: StepPlan, places: list[tuple[int, int]]) -> None:
        slots = np.array([slot for slot, _ in places], np.int32)
        generations = np.array([self.generations[slot] for slot, _ in places], np.int32)
        starts = np.array([start for _, start in places], np.int32)
        digest = xxh3_64_intdigest(slots.tobytes() + generations.tobytes() + starts.tobytes())
        require(digest == plan.position_checksum, "the position checksum holds")

    def _write(self, number: int, start: int, tokens: list[int]) -> None:
        slot, size = self.slots[number], self.limits.block_size
        for position, token in enumerate(tokens, start):
            require(position < self.limits.max_model_len, "positions stay below the model's limit")
            require(position // size < len(slot.table), "positions have blocks")
            self.cells[slot.table[position // size], position % size] = token
        self.num_computed[slot.start.sampling.seed] += len(tokens)
        slot.is_placed = True
        slot.next_position = start + len(tokens)

    def _sample(self, plan: StepPlan, rows: list[tuple[int, int, list[int], bool]]) -> StepResult:
        tokens: list[int] = []
        counts: list[int] = []
        failed: list[int] = []
        for row, (number, _, _, samples) in enumerate(rows):
            slot = self.slots[number]
            slot.last_token = None
            if not samples:
                continue
            if slot.start.sampling.seed in self.failing_seeds:
                slot.last_token = 0
                failed.append(row)
                counts.append(0)
                continue
            slot.last_token = next_token(
                self._history(slot),
                seed=slot.start.sampling.seed,
                vocab_size=self.limits.vocab_size,
                stop_token_ids=slot.start.stop_token_ids,
                min_position=slot.start.min_position,
            )
            tokens.append(slot.last_token)
            counts.append(1)
        return StepResult(
            step=plan.step,
            tokens=np.array(tokens, np.int32),
            token_counts=np.array(counts, np.int32) if failed else None,
            failed_rows=np.array(failed, np.int32),
            forward_us=1000 + 10 * plan.num_prefill_tokens,
        )

    def _history(self, slot: Slot) -> list[int]:
        size = self.limits.block_size
        places = ((slot.table[p // size], p % size) for p in range(slot.next_position))
        return [self.cells.get(place, -1) for place in places]
