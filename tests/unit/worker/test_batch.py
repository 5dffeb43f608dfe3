"""The resident batch against a naive record of slots, and against plans that break the contract."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from octavo.internal.v1 import step_pb2
from tests.fakes.plan_writer import Chunk, PlanWriter, from_int32s, int32s
from worker_svc.batch import PlannedStep, ResidentBatch, with_masks
from worker_svc.batch_step import NO_STOP_ID, BatchStep, NewBlocks, SamplingColumns
from worker_svc.plan_columns import BatchLimits, ProtocolFault

LIMITS = BatchLimits(
    max_num_seqs=6,
    max_num_batched_tokens=48,
    max_model_len=40,
    block_size=4,
    num_blocks=500,
    vocab_size=70,
)
EPOCH = step_pb2.Epoch(core_incarnation=11, counter=3)


def new_writer() -> PlanWriter:
    return PlanWriter(EPOCH, block_size=LIMITS.block_size)


class Blocks:
    """Hands out block ids, none twice."""

    def __init__(self) -> None:
        self._next = 1

    def for_slot(
        self, writer: PlanWriter, slot: int, end: int, *, anew: bool
    ) -> list[tuple[int, int]]:
        """What the slot needs to hold positions below `end`; all of it when it starts anew."""
        held = 0 if anew else len(writer.record(slot).blocks)
        count = max(0, -(-end // LIMITS.block_size) - held)
        first, self._next = self._next, self._next + count
        return [(slot, block) for block in range(first, first + count)]


def draw_start(data: st.DataObject, writer: PlanWriter, slot: int) -> step_pb2.SlotStart:
    start = writer.start(
        slot,
        sampling=step_pb2.Sampling(
            temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
            top_k=data.draw(st.integers(0, 100)),
            top_p=data.draw(st.sampled_from([0.0, 0.25, 1.0])),
            min_p=data.draw(st.sampled_from([0.0, 0.5])),
            seed=data.draw(st.integers(0, 2**64 - 1)),
        ),
        stop_token_ids=data.draw(st.lists(st.integers(0, LIMITS.vocab_size - 1), max_size=3)),
        min_position=data.draw(st.integers(0, 50)),
    )
    start.generation += data.draw(st.integers(0, 2))
    return start


def draw_plan(data: st.DataObject, writer: PlanWriter, blocks: Blocks) -> step_pb2.StepPlan:
    """A valid plan: any slot rests, goes on steadily, goes on with a chunk, or starts."""
    steady: list[int] = []
    chunks: list[Chunk] = []
    new_blocks: list[tuple[int, int]] = []
    budget = LIMITS.max_num_batched_tokens
    for slot in data.draw(st.permutations(range(LIMITS.max_num_seqs))):
        record = writer.record(slot)
        has_room = record.next_position < LIMITS.max_model_len
        choices = ["rest", "start"]
        choices += ["steady"] if record.has_sampled and has_room else []
        choices += ["chunk"] if record.generation and has_room else []
        kind = data.draw(st.sampled_from(choices))
        if kind == "rest" or budget == 0:
            continue
        is_start = kind == "start"
        position = data.draw(st.integers(0, 20)) if is_start else record.next_position
        longest = 1 if kind == "steady" else min(LIMITS.max_model_len - position, 12, budget)
        length = data.draw(st.integers(1, longest))
        budget -= length
        new_blocks += blocks.for_slot(writer, slot, position + length, anew=is_start)
        if kind == "steady":
            steady.append(slot)
            continue
        token_ids = st.integers(0, LIMITS.vocab_size - 1)
        chunks.append(
            Chunk(
                slot=slot,
                tokens=data.draw(st.lists(token_ids, min_size=length, max_size=length)),
                position=position,
                samples=data.draw(st.booleans()),
                start=draw_start(data, writer, slot) if is_start else None,
            )
        )
    if not steady and not chunks:
        chunks.append(Chunk(slot=0, tokens=[1], position=0, start=writer.start(0)))
        new_blocks = blocks.for_slot(writer, 0, 1, anew=True)
    masked = [r for r in range(len(steady)) if data.draw(st.booleans())]
    return writer.plan(steady=steady, chunks=chunks, new_blocks=new_blocks, masked_rows=masked)


def assert_matches(planned: PlannedStep, plan: step_pb2.StepPlan, writer: PlanWriter) -> None:
    """The step holds, row by row, what the plan and the naive records say."""
    step = planned.step
    slots, chunk_rows = from_int32s(plan.slots), from_int32s(plan.chunk_rows)
    num_steady = len(slots) - len(chunk_rows)
    assert planned.number == plan.step
    assert step.slots.tolist() == slots
    assert step.is_decode.tolist() == [row < num_steady for row in range(len(slots))]
    assert step.num_tokens.tolist() == [1] * num_steady + from_int32s(plan.chunk_num_tokens)
    assert step.samples.tolist() == [True] * num_steady + [bool(s) for s in plan.chunk_samples]
    assert step.token_ids.tolist()[num_steady:] == from_int32s(plan.chunk_tokens)
    assert step.token_ids.size == step.num_tokens.sum()
    assert planned.awaits_mask_rows.tolist() == from_int32s(plan.awaits_mask_rows)
    for row, slot in enumerate(slots):
        record = writer.record(slot)
        end = int(step.start_positions[row] + step.num_tokens[row])
        assert end == record.next_position
        held = -(-end // LIMITS.block_size)
        assert step.block_table[row, :held].tolist() == record.blocks[:held]
        assert_sampling_matches(step, row, record.start)


def assert_sampling_matches(step: BatchStep, row: int, start: step_pb2.SlotStart) -> None:
    columns, chosen = step.sampling, start.sampling
    assert float(columns.temperature[row]) == chosen.temperature
    assert int(columns.top_k[row]) == chosen.top_k
    assert float(columns.top_p[row]) == chosen.top_p
    assert float(columns.min_p[row]) == chosen.min_p
    assert int(columns.seed[row]) == chosen.seed
    assert int(columns.min_position[row]) == start.min_position
    stop_ids = columns.stop_ids[row]
    assert stop_ids[stop_ids != NO_STOP_ID].tolist() == list(start.stop_token_ids)


@given(st.data())
def test_any_valid_sequence_of_plans_gives_the_steps_it_describes(data: st.DataObject) -> None:
    batch = ResidentBatch(LIMITS)
    for _ in range(data.draw(st.integers(1, 3))):
        writer, blocks = new_writer(), Blocks()
        batch.clear()
        for _ in range(data.draw(st.integers(1, 8))):
            plan = draw_plan(data, writer, blocks)
            assert_matches(batch.apply(plan), plan, writer)


@pytest.mark.parametrize("gathers_tables", [True, False])
def test_steady_rows_go_on_as_described_and_are_checked_each_time(gathers_tables: bool) -> None:  # noqa: FBT001
    batch, writer = ResidentBatch(LIMITS, gathers_tables=gathers_tables), new_writer()
    starts = [writer.start(slot, stop_token_ids=[slot]) for slot in (2, 0)]
    chunks = [Chunk(slot=s.slot, tokens=[1] * 3, position=0, start=s) for s in starts]
    batch.apply(writer.plan(chunks=chunks, new_blocks=[(2, 10), (0, 11)]))
    in_use = 11
    for _ in range(3 * LIMITS.block_size):
        new_blocks = []
        for slot in (2, 0):
            for _ in range(writer.blocks_needed(slot, writer.record(slot).next_position + 1)):
                in_use += 1
                new_blocks.append((slot, in_use))
        plan = writer.plan(steady=[2, 0], new_blocks=new_blocks)
        for broken in (
            {"position_checksum": plan.position_checksum ^ 1},
            {"chunk_tokens": b"1234"},
            {"new_block_slots": int32s([2]), "new_block_indexes": int32s([7])},
            {"new_block_slots": b"", "new_block_indexes": b"", "new_block_ids": b""}
            if new_blocks
            else {"new_block_ids": int32s([1])},
        ):
            damaged = step_pb2.StepPlan.FromString(plan.SerializeToString())
            for name, value in broken.items():
                setattr(damaged, name, value)
            with pytest.raises(ProtocolFault):
                batch.apply(damaged)
        planned = batch.apply(plan)
        if gathers_tables:
            assert_matches(planned, plan, writer)
        assert planned.step.start_positions.tolist() == [
            writer.record(slot).next_position - 1 for slot in (2, 0)
        ]


@given(st.data())
def test_a_step_is_untouched_by_later_plans(data: st.DataObject) -> None:
    batch, writer, blocks = ResidentBatch(LIMITS), new_writer(), Blocks()
    steps = []
    for _ in range(4):
        step = batch.apply(draw_plan(data, writer, blocks)).step
        steps.append((step, columns_of(step)))
    assert all(columns_of(step) == before for step, before in steps)


@given(st.data())
def test_a_table_kept_from_new_blocks_is_the_gathered_one(data: st.DataObject) -> None:
    batch, keeper = ResidentBatch(LIMITS), ResidentBatch(LIMITS, gathers_tables=False)
    writer, blocks = new_writer(), Blocks()
    kept = np.zeros((LIMITS.max_num_seqs, LIMITS.max_blocks_per_slot), np.int32)
    for _ in range(data.draw(st.integers(1, 6))):
        plan = draw_plan(data, writer, blocks)
        step, lean = batch.apply(plan).step, keeper.apply(plan).step
        assert lean.new_blocks is not None
        kept[lean.new_blocks.slots, lean.new_blocks.indexes] = lean.new_blocks.ids
        assert lean.block_table.shape == (step.slots.size, 0)
        ends = step.start_positions + step.num_tokens
        for row, slot in enumerate(step.slots):
            used = -(-int(ends[row]) // LIMITS.block_size)
            assert kept[slot, :used].tolist() == step.block_table[row, :used].tolist()


def columns_of(step: BatchStep) -> tuple[object, ...]:
    """Every value of the step, comparable."""
    assert step.new_blocks is not None
    parts: list[BatchStep | SamplingColumns | NewBlocks] = [step, step.sampling, step.new_blocks]
    nested = {"sampling", "masks", "new_blocks", "rules"}
    names = [[f.name for f in fields(part) if f.name not in nested] for part in parts]
    return tuple(
        (name, getattr(part, name).tolist())
        for part, of_part in zip(parts, names, strict=True)
        for name in of_part
    )


def flip_byte(column: bytes, index: int) -> bytes:
    changed = bytearray(column)
    changed[index % len(column)] ^= 1 << (index % 8)
    return bytes(changed)


@given(st.data())
def test_a_damaged_plan_is_refused_and_changes_nothing(
    data: st.DataObject,
) -> None:
    damaged_batch, clean_batch = ResidentBatch(LIMITS), ResidentBatch(LIMITS)
    writer, blocks = new_writer(), Blocks()
    for _ in range(data.draw(st.integers(1, 4))):
        plan = draw_plan(data, writer, blocks)
        damaged = step_pb2.StepPlan()
        damaged.CopyFrom(plan)
        names = ["slots", "chunk_rows", "chunk_generations", "chunk_start_positions"]
        names = [name for name in names if getattr(plan, name)]
        name = data.draw(st.sampled_from(names))
        setattr(damaged, name, flip_byte(getattr(plan, name), data.draw(st.integers(0, 999))))
        with pytest.raises(ProtocolFault):
            damaged_batch.apply(damaged)
        after_refusal = damaged_batch.apply(plan)
        assert columns_of(after_refusal.step) == columns_of(clean_batch.apply(plan).step)


def running_batch() -> tuple[ResidentBatch, PlanWriter]:
    """Slot 0 has a prompt of 6 tokens and goes on steadily, slot 1 is in the middle of a prompt."""
    batch, writer = ResidentBatch(LIMITS), new_writer()
    start = writer.start(0, stop_token_ids=[3, 4])
    plan = writer.plan(
        chunks=[
            Chunk(slot=0, tokens=range(6), position=0, start=start),
            Chunk(slot=1, tokens=range(4), position=0, samples=False, start=writer.start(1)),
        ],
        new_blocks=[(0, 10), (0, 11), (1, 12), (1, 13), (1, 14)],
    )
    batch.apply(plan)
    return batch, writer


def valid_plan(writer: PlanWriter) -> step_pb2.StepPlan:
    """Slot 0 steady, slot 1 goes on with its prompt, slot 2 starts."""
    return writer.plan(
        steady=[0],
        chunks=[
            Chunk(slot=1, tokens=[5, 6, 7], position=4),
            Chunk(slot=2, tokens=[8, 9], position=0, start=writer.start(2)),
        ],
        new_blocks=[(2, 20)],
        masked_rows=[0, 2],
    )


Breakage = Callable[[step_pb2.StepPlan], None]


def setting(**columns: Sequence[int] | bytes) -> Breakage:
    def apply(plan: step_pb2.StepPlan) -> None:
        for name, values in columns.items():
            setattr(plan, name, values if isinstance(values, bytes) else int32s(values))

    return apply


def starting(**fields: object) -> Breakage:
    def apply(plan: step_pb2.StepPlan) -> None:
        for name, value in fields.items():
            if name == "stop_token_ids":
                plan.starts[0].stop_token_ids.append(int(str(value)))
            else:
                setattr(plan.starts[0], name, value)

    return apply


def sampling(**fields: float | bytes) -> Breakage:
    def apply(plan: step_pb2.StepPlan) -> None:
        for name, value in fields.items():
            setattr(plan.starts[0].sampling, name, value)

    return apply


def start_twice(plan: step_pb2.StepPlan) -> None:
    plan.starts.append(plan.starts[0])


def start_without_row(plan: step_pb2.StepPlan) -> None:
    plan.starts.add(slot=4, generation=1)


def wrong_checksum(plan: step_pb2.StepPlan) -> None:
    plan.position_checksum ^= 1


BREAKAGES: dict[str, tuple[str, Breakage]] = {
    "no rows": ("slots", setting(slots=[])),
    "half a value": ("slots", setting(slots=b"\0\0\0")),
    "negative slot": ("slots", setting(slots=[-1, 1, 2])),
    "slot beyond the batch": ("slots", setting(slots=[0, 1, 6])),
    "slot twice": ("slots", setting(slots=[0, 1, 1])),
    "steady row of a slot that never started": ("slots", setting(slots=[3, 1, 2])),
    "chunk rows before the last": ("chunk_rows", setting(chunk_rows=[0, 1])),
    "chunk rows not ascending": ("chunk_rows", setting(chunk_rows=[2, 1])),
    "too many chunk rows": (
        "chunk_rows",
        setting(
            chunk_rows=[0, 1, 2, 3],
            chunk_generations=[1] * 4,
            chunk_num_tokens=[1] * 4,
            chunk_start_positions=[0] * 4,
            chunk_samples=bytes(4),
        ),
    ),
    "a generation less": ("chunk_generations", setting(chunk_generations=[1])),
    "another generation": ("chunk_generations", setting(chunk_generations=[2, 1])),
    "a count less": ("chunk_num_tokens", setting(chunk_num_tokens=[3])),
    "an empty chunk": ("chunk_num_tokens", setting(chunk_num_tokens=[5, 0])),
    "a position less": ("chunk_start_positions", setting(chunk_start_positions=[4])),
    "a negative position": ("chunk_start_positions", setting(chunk_start_positions=[-4, 0])),
    "a position beyond": ("chunk_start_positions", setting(chunk_start_positions=[4, 39])),
    "a position that overflows": (
        "chunk_start_positions",
        setting(chunk_start_positions=[4, 2**31 - 1]),
    ),
    "a flag less": ("chunk_samples", setting(chunk_samples=b"\1")),
    "a flag of 2": ("chunk_samples", setting(chunk_samples=b"\1\2")),
    "tokens missing": ("chunk_tokens", setting(chunk_tokens=[5, 6, 7, 8])),
    "a token beyond": ("chunk_tokens", setting(chunk_tokens=[5, 6, 7, 8, 70])),
    "a negative token": ("chunk_tokens", setting(chunk_tokens=[5, 6, 7, -1, 9])),
    "a block of a slot beyond": ("new_block_slots", setting(new_block_slots=[6])),
    "a block of an unused slot": ("new_block_slots", setting(new_block_slots=[5])),
    "a block without index": ("new_block_indexes", setting(new_block_indexes=[])),
    "a block index left out": ("new_block_indexes", setting(new_block_indexes=[1])),
    "a block index beyond": ("new_block_indexes", setting(new_block_indexes=[10])),
    "a negative block index": ("new_block_indexes", setting(new_block_indexes=[-1])),
    "a block overwritten": (
        "new_block_indexes",
        setting(new_block_slots=[1], new_block_indexes=[2]),
    ),
    "the trash block": ("new_block_ids", setting(new_block_ids=[0])),
    "a block beyond": ("new_block_ids", setting(new_block_ids=[500])),
    "a block less than needed": (
        "slots",
        setting(new_block_slots=[], new_block_indexes=[], new_block_ids=[]),
    ),
    "start twice": ("starts.slot", start_twice),
    "start without a row": ("starts.slot", start_without_row),
    "start of a slot beyond": ("starts.slot", starting(slot=6)),
    "start of generation 0": ("starts.generation", starting(generation=0)),
    "start of an old generation": ("starts.generation", starting(slot=1)),
    "a generation too large": ("starts.generation", starting(generation=2**31)),
    "history of an id beyond": ("starts.history", starting(history=b"\xff\0\0\0")),
    "rules of half a value": ("starts.logit_bias_ids", sampling(logit_bias_ids=bytes(3))),
    "a bias without its value": ("starts.logit_bias_values", sampling(logit_bias_ids=bytes(4))),
    "a penalty that is no number": ("starts.sampling", sampling(presence_penalty=float("inf"))),
    "a negative repetition": ("starts.repetition_penalty", sampling(repetition_penalty=-1)),
    "a record before the prompt": ("starts.prompt_records_from", starting(prompt_records_from=9)),
    "bad tokens without lengths": (
        "starts.bad_sequence_lengths",
        sampling(bad_sequence_tokens=bytes(4)),
    ),
    "more alternatives than ids": ("starts.num_top_logprobs", sampling(num_top_logprobs=71)),
    "a stop id beyond": ("starts.stop_token_ids", starting(stop_token_ids=70)),
    "a negative stop id": ("starts.stop_token_ids", starting(stop_token_ids=-1)),
    "a min_position too large": ("starts.min_position", starting(min_position=2**31)),
    "a temperature that is no number": (
        "starts.sampling.temperature",
        sampling(temperature=float("nan")),
    ),
    "a negative temperature": ("starts.sampling.temperature", sampling(temperature=-1.0)),
    "top_p above 1": ("starts.sampling.top_p", sampling(top_p=1.5)),
    "top_p that is no number": ("starts.sampling.top_p", sampling(top_p=float("nan"))),
    "min_p above 1": ("starts.sampling.min_p", sampling(min_p=1.5)),
    "top_k too large": ("starts.sampling.top_k", sampling(top_k=2**31)),
    "mask row beyond": ("awaits_mask_rows", setting(awaits_mask_rows=[3])),
    "negative mask row": ("awaits_mask_rows", setting(awaits_mask_rows=[-1])),
    "mask rows not ascending": ("awaits_mask_rows", setting(awaits_mask_rows=[2, 0])),
    "mask of a row that does not sample": (
        "awaits_mask_rows",
        setting(chunk_samples=b"\1\0"),
    ),
    "wrong checksum": ("position_checksum", wrong_checksum),
    "another position": ("position_checksum", setting(chunk_start_positions=[5, 0])),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_a_plan_that_breaks_a_rule_is_refused_by_name_and_changes_nothing(what: str) -> None:
    field, break_it = BREAKAGES[what]
    batch, writer = running_batch()
    untouched, _ = running_batch()
    plan = valid_plan(writer)
    broken = step_pb2.StepPlan()
    broken.CopyFrom(plan)
    break_it(broken)
    with pytest.raises(ProtocolFault) as caught:
        batch.apply(broken)
    assert caught.value.field == field
    assert columns_of(batch.apply(plan).step) == columns_of(untouched.apply(plan).step)


def test_a_steady_row_after_a_row_that_did_not_sample_is_refused() -> None:
    batch, writer = running_batch()
    with pytest.raises(ProtocolFault, match="did not sample"):
        batch.apply(writer.plan(steady=[1]))


def test_a_steady_row_beyond_the_longest_sequence_is_refused() -> None:
    batch, writer = running_batch()
    blocks = [(0, block) for block in range(30, 38)]
    full = Chunk(slot=0, tokens=[1] * 34, position=6)
    batch.apply(writer.plan(chunks=[full], new_blocks=blocks))
    with pytest.raises(ProtocolFault, match="max_model_len"):
        batch.apply(writer.plan(steady=[0]))


def test_a_step_beyond_the_token_budget_is_refused() -> None:
    batch, writer = running_batch()
    chunks = [Chunk(slot=s, tokens=[1] * 24, position=0, start=writer.start(s)) for s in (2, 3)]
    with pytest.raises(ProtocolFault, match="at most 48 tokens"):
        batch.apply(writer.plan(steady=[0], chunks=chunks))


def test_a_new_epoch_forgets_generations_and_slots() -> None:
    batch, writer = running_batch()
    batch.clear()
    with pytest.raises(ProtocolFault, match="did not sample"):
        batch.apply(writer.plan(steady=[0]))
    writer = new_writer()
    first = Chunk(slot=0, tokens=[1], position=0, start=writer.start(0))
    step = batch.apply(writer.plan(chunks=[first], new_blocks=[(0, 1)])).step
    assert step.block_table.tolist() == [[1]]


def test_a_start_resets_the_block_table_and_the_stop_ids() -> None:
    batch, writer = running_batch()
    again = Chunk(slot=0, tokens=range(9), position=0, start=writer.start(0))
    step = batch.apply(writer.plan(chunks=[again], new_blocks=[(0, 31), (0, 32), (0, 33)])).step
    assert step.block_table.tolist() == [[31, 32, 33]]
    assert step.sampling.stop_ids.tolist() == [[]]


def test_a_slot_that_sits_out_keeps_its_state() -> None:
    batch, writer = running_batch()
    batch.apply(writer.plan(chunks=[Chunk(slot=1, tokens=[1], position=4, samples=False)]))
    step = batch.apply(writer.plan(steady=[0])).step
    assert step.start_positions.tolist() == [6]
    assert step.sampling.stop_ids.tolist() == [[3, 4]]


def test_masks_join_their_rows() -> None:
    batch, writer = running_batch()
    planned = batch.apply(valid_plan(writer))
    words = np.arange(6, dtype=np.int32)
    step = with_masks(planned, words.tobytes(), vocab_size=LIMITS.vocab_size)
    assert step.masks is not None
    assert step.masks.rows.tolist() == [0, 2]
    assert step.masks.words.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("num_bytes", [0, 20, 28])
def test_masks_of_another_size_are_refused(num_bytes: int) -> None:
    batch, writer = running_batch()
    planned = batch.apply(valid_plan(writer))
    with pytest.raises(ProtocolFault, match="24 bytes"):
        with_masks(planned, bytes(num_bytes), vocab_size=LIMITS.vocab_size)


def test_the_checksum_covers_slots_generations_and_positions_as_the_contract_says() -> None:
    batch, writer = running_batch()
    plan = valid_plan(writer)
    columns = struct.pack("<9i", *(0, 1, 2), *(1, 1, 1), *(6, 4, 0))
    assert plan.position_checksum == xxhash.xxh3_64_intdigest(columns)
    assert batch.apply(plan).step.start_positions.tolist() == [6, 4, 0]
