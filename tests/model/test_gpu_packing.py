"""What a step copies to the device, column by column, and which program it is for."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from tests.model.rigs import Row, resident_step
from worker_svc.batch_step import NewBlocks, SamplingColumns, TokenMasks
from worker_svc.execution.row_masks import masks_of
from worker_svc.execution.step_layout import (
    STOP_IDS_A_ROW,
    CopyAreas,
    ForwardShape,
    StepSizes,
    decode_columns,
    sample_columns,
)
from worker_svc.execution.step_packing import StepPacker, facts_of

SIZES = StepSizes(
    num_slots=8,
    most_tokens=40,
    blocks_per_slot=6,
    block_size=16,
    hidden_size=4,
    num_positions=96,
)
AREAS = CopyAreas.of(SIZES)
NUM_IDS = 100


def blocks(*triples: tuple[int, int, int]) -> NewBlocks:
    columns = np.array(triples, np.int32).reshape(-1, 3)
    return NewBlocks(columns[:, 0], columns[:, 1], columns[:, 2])


def packer() -> tuple[StepPacker, torch.Tensor]:
    memory = torch.full((AREAS.num_words,), 77, dtype=torch.int32)
    return StepPacker(memory, AREAS), memory


def sampling_of(count: int, **columns: object) -> SamplingColumns:
    return replace(SamplingColumns.greedy(count), **columns)  # type: ignore[arg-type] # by name


def test_a_decode_steps_columns_and_its_padding() -> None:
    made, memory = packer()
    sampling = sampling_of(
        3,
        temperature=np.array([0.0, 0.7, 5e-6], np.float32),
        seed=np.array([1, 2**64 - 1, 3], np.uint64),
        min_position=np.array([0, 50, 0], np.int32),
        stop_ids=np.array([[-1, -1], [9, 4], [-1, -1]], np.int32),
    )
    rows = [Row(5, 16, None), Row(2, 31, None), Row(7, 3, None)]
    step = resident_step(rows, new_blocks=blocks((2, 2, 41), (5, 1, 40)), sampling=sampling)
    found = facts_of(step, num_tokenizer_ids=NUM_IDS)
    assert found.is_decode
    assert found.block_rows is not None
    num_words = made.decode(step, 4, found.block_rows)
    columns = decode_columns(AREAS.forward(memory), 4)
    assert num_words == 4 * (8 + STOP_IDS_A_ROW), "a row is too early for its stop ids"
    assert columns.slots.tolist() == [5, 2, 7, -1]
    assert columns.positions[:3].tolist() == [16, 31, 3]
    assert columns.new_index.tolist() == [1, 2, -1, -1]
    assert columns.new_block[:2].tolist() == [40, 41]
    assert columns.temperature.tolist() == pytest.approx([0.0, 0.7, 0.0, 0.0])
    assert columns.seeds[:3].tolist() == [1, -1, 3]
    assert columns.min_position[:3].tolist() == [0, 50, 0]
    assert columns.stop_ids[1, :3].tolist() == [9, 4, -1]
    later = resident_step(rows[:1], new_blocks=blocks(), sampling=sampling_of(1))
    assert made.decode(later, 4, np.zeros(0, np.intp)) == 4 * 8, "no stop id is copied in vain"
    assert columns.slots.tolist() == [5, -1, -1, -1]
    assert columns.new_index.tolist() == [-1] * 4


def test_a_step_that_shares_columns_is_packed_like_a_new_one() -> None:
    """Steady rows bring the same columns again, and only their positions and blocks differ."""
    reused, memory = packer()
    sampling = sampling_of(
        2,
        temperature=np.array([0.5, 1.0], np.float32),
        min_position=np.array([0, 40], np.int32),
        stop_ids=np.array([[-1], [9]], np.int32),
    )
    first = resident_step(
        [Row(5, 15, None), Row(2, 38, None)], new_blocks=blocks((2, 2, 41)), sampling=sampling
    )
    prompt = resident_step([Row(3, 0, [5, 6, 7])], new_blocks=blocks())
    steps = [
        replace(first, start_positions=first.start_positions + passed, new_blocks=blocks(*new))
        for passed, new in ((0, [(2, 2, 41)]), (1, [(5, 1, 40)]), (2, []))
    ]
    known = None
    for step, size in ((steps[0], 2), (steps[1], 2), (steps[2], 4), (steps[0], 4)):
        found = facts_of(step, num_tokenizer_ids=NUM_IDS, earlier=known)
        fresh, fresh_memory = packer()
        alone = facts_of(step, num_tokenizer_ids=NUM_IDS)
        assert found.block_rows is not None
        assert alone.block_rows is not None
        assert found.block_rows.tolist() == alone.block_rows.tolist()
        others = [f.name for f in fields(found) if f.name != "block_rows"]
        assert [getattr(found, o) for o in others] == [getattr(alone, o) for o in others]
        assert reused.decode(step, size, found.block_rows) == fresh.decode(
            step, size, alone.block_rows
        )
        mine, wanted = (decode_columns(AREAS.forward(m), size) for m in (memory, fresh_memory))
        for name in ("slots", "new_index", "temperature"):
            assert getattr(mine, name).tolist() == getattr(wanted, name).tolist()
        for name in ("positions", "seeds", "min_position"):
            assert getattr(mine, name)[:2].tolist() == getattr(wanted, name)[:2].tolist()
        known = step, found
        # another program's columns lie in the same memory
        reused.forward(prompt, ForwardShape(0, 2, 4), facts_of(prompt, num_tokenizer_ids=NUM_IDS))


def test_a_mixed_steps_columns_and_its_padding() -> None:
    made, memory = packer()
    rows = [Row(1, 20, None), Row(3, 0, [5, 6, 7]), Row(0, 16, [8, 9], samples=False)]
    step = resident_step(rows, new_blocks=blocks((3, 0, 11)))
    found = facts_of(step, num_tokenizer_ids=NUM_IDS)
    assert not found.is_decode
    shape = ForwardShape(num_singles=2, num_chunks=4, num_tokens=8)
    num_words = made.forward(step, shape, found)
    singles, chunks = shape.columns(AREAS.forward(memory))
    assert num_words == shape.num_words - 3, "five of eight tokens are copied"
    assert singles.slots.tolist() == [1, -1]
    assert singles.positions[0] == 20
    assert singles.new_index.tolist() == [-1, -1], "blocks travel apart"
    assert chunks.slots.tolist() == [3, 0, -1, -1]
    assert chunks.starts[:2].tolist() == [0, 16]
    assert chunks.first_tokens.tolist() == [1, 4, 6, 6, 6]
    assert chunks.token_ids[:5].tolist() == [5, 6, 7, 8, 9]

    sampling = sampling_of(
        3,
        temperature=np.array([0.5, 1.0, 1.0], np.float32),
        top_k=np.array([0, 7, 0], np.int32),
        top_p=np.array([1.0, 0.9, 1.0], np.float32),
        min_p=np.array([0.25, 0.0, 0.0], np.float32),
    )
    step = replace(step, sampling=sampling)
    made.choice(step, 4, num_tokenizer_ids=NUM_IDS)
    choice = sample_columns(AREAS.samples(memory), 4)
    assert choice.slots.tolist() == [1, 3, -1, -1]
    assert choice.last_indexes.tolist() == [0, 3, 0, 0]
    assert choice.positions[:2].tolist() == [21, 3]
    assert choice.top_k.tolist() == [NUM_IDS, 7, 1, 1]
    assert choice.top_p.tolist() == pytest.approx([1.0, 0.9, 1.0, 1.0])
    assert choice.log_min_p.tolist() == pytest.approx([np.log(0.25), *[-np.inf] * 3])
    assert choice.mask_rows.tolist() == [-1] * 4


DECODE = [Row(1, 20, None), Row(3, 4, None)]


@pytest.mark.parametrize(
    ("rows", "new_blocks", "is_decode"),
    [
        (DECODE, blocks(), True),
        (DECODE, blocks((1, 2, 9), (3, 1, 8)), True),
        (DECODE, blocks((1, 2, 9), (1, 3, 8)), False),  # two for one row
        (DECODE, blocks((0, 2, 9)), False),  # a slot that sits out
        ([*DECODE, Row(0, 0, [1])], blocks(), False),
    ],
)
def test_what_runs_as_one_decode_program(
    rows: list[Row],
    new_blocks: NewBlocks,
    is_decode: bool,  # noqa: FBT001 - a parameter
) -> None:
    step = resident_step(rows, new_blocks=new_blocks)
    assert facts_of(step, num_tokenizer_ids=NUM_IDS).is_decode == is_decode


def test_filters_count_where_they_can_matter() -> None:
    def has_filters(**columns: object) -> bool:
        step = resident_step(DECODE, new_blocks=blocks(), sampling=sampling_of(2, **columns))
        return facts_of(step, num_tokenizer_ids=NUM_IDS).has_filters

    warm = np.array([0.0, 0.8], np.float32)
    assert not has_filters(temperature=warm)
    assert has_filters(temperature=warm, top_p=np.array([1.0, 0.9], np.float32))
    assert has_filters(temperature=warm, min_p=np.array([0.0, 0.1], np.float32))
    assert has_filters(temperature=warm, top_k=np.array([0, NUM_IDS - 1], np.int32))
    assert not has_filters(temperature=warm, top_k=np.array([5, NUM_IDS], np.int32)), "greedy, off"


def allowed_of(words: np.ndarray) -> set[int]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:NUM_IDS]
    return set(np.flatnonzero(bits).tolist())


def test_masks_join_grammars_and_bans() -> None:
    many = np.arange(20, 20 + STOP_IDS_A_ROW + 2, dtype=np.int32)
    stop_ids = np.full((3, many.size), -1, np.int32)
    stop_ids[1:] = many
    sampling = sampling_of(3, min_position=np.array([0, 99, 99], np.int32), stop_ids=stop_ids)
    rows = [Row(0, 4, None), Row(1, 4, None), Row(2, 4, None)]
    step = resident_step(rows, new_blocks=blocks(), sampling=sampling)
    assert facts_of(step, num_tokenizer_ids=NUM_IDS).has_masks
    grammar = np.zeros((2, 4), np.int32)
    grammar[0, 0] = 0b101
    grammar[1, 0] = 1 << 25
    grammar[1, 3] = 0b1
    step = replace(step, masks=TokenMasks(np.array([0, 2], np.int32), grammar))
    found, words = masks_of(step, vocab_size=NUM_IDS)
    assert found.tolist() == [0, 1, 2]
    assert allowed_of(words[0]) == {0, 2}
    assert allowed_of(words[1]) == set(range(NUM_IDS)) - set(many.tolist())
    assert allowed_of(words[2]) == {96}, "25 is a stop id that comes too early"


def test_areas_hold_the_largest_step_and_begin_at_whole_int64s() -> None:
    assert AREAS.num_forward_words % 2 == AREAS.num_sample_words % 2 == 0
    largest = ForwardShape(SIZES.num_slots, SIZES.num_slots, SIZES.most_tokens)
    assert largest.num_words <= AREAS.num_forward_words
    memory = torch.zeros(AREAS.num_words, dtype=torch.int32)
    parts = (AREAS.forward(memory), AREAS.samples(memory), AREAS.new_blocks(memory))
    assert sum(part.shape[0] for part in parts) == AREAS.num_words
