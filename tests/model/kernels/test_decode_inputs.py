"""The device makes of a step's columns what the host would have made of them."""

from dataclasses import fields

import torch
from hypothesis import given
from hypothesis import strategies as st

from worker_svc.kernels.decode_columns import NO_BLOCK, NO_SLOT, DecodeColumns
from worker_svc.kernels.decode_inputs import DecodeInputs, prepare_decode

NUM_SLOTS = 6
WIDTH = 5

rows_strategy = st.lists(
    st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, 79), st.booleans()),
    min_size=0,
    max_size=NUM_SLOTS,
    unique_by=lambda row: row[0],
)


def columns_on(device: torch.device, num_rows: int) -> DecodeColumns:
    num_words = DecodeColumns.num_words(num_rows, num_stop_ids=2)
    packed = torch.full((num_words,), 77, dtype=torch.int32, device=device)
    columns = DecodeColumns.of(packed, num_rows=num_rows, num_stop_ids=2)
    columns.clear()
    return columns


def test_columns_share_the_packed_memory_and_no_word_is_left_over(device: torch.device) -> None:
    num_rows = 3
    packed = torch.zeros(
        DecodeColumns.num_words(num_rows, num_stop_ids=2), dtype=torch.int32, device=device
    )
    columns = DecodeColumns.of(packed, num_rows=num_rows, num_stop_ids=2)
    for field in fields(columns):
        column = getattr(columns, field.name)
        assert not bool(column.any()), f"{field.name} overlaps an earlier one"
        column.view(torch.int32).fill_(1)
    assert bool((packed == 1).all())


@given(rows=rows_strategy, num_padding=st.integers(0, 3), block_size=st.sampled_from((16, 64)))
def test_inputs_follow_slots_positions_and_tables(
    device: torch.device, rows: list[tuple[int, int, bool]], num_padding: int, block_size: int
) -> None:
    # scenarios CG-03, CG-05: padding rows are length 0 and store nowhere
    num_rows = len(rows) + num_padding
    if num_rows == 0:
        return
    columns = columns_on(device, num_rows)
    tables = (torch.arange(NUM_SLOTS * WIDTH, dtype=torch.int32) + 1).view(NUM_SLOTS, WIDTH)
    expected_tables = tables.clone()
    last_tokens = torch.arange(100, 100 + NUM_SLOTS)
    for row, (slot, position, gets_block) in enumerate(rows):
        columns.slots[row], columns.positions[row] = slot, position
        if gets_block:
            index = position // block_size
            columns.new_index[row], columns.new_block[row] = index, 500 + row
            expected_tables[slot, index] = 500 + row
    inputs = DecodeInputs.allocate(num_rows, num_blocks=WIDTH, device=device)
    inputs.token_ids.fill_(-5)
    inputs.block_table.fill_(-5)
    on_device = tables.to(device)
    prepare_decode(
        columns,
        inputs,
        last_tokens=last_tokens.to(device),
        tables=on_device,
        block_size=block_size,
    )
    assert torch.equal(on_device.cpu(), expected_tables)
    for row, (slot, position, _) in enumerate(rows):
        index = position // block_size
        place = int(expected_tables[slot, index]) * block_size + position % block_size
        assert int(inputs.token_ids[row]) == 100 + slot
        assert int(inputs.positions[row]) == position
        assert int(inputs.slot_mapping[row]) == place
        assert int(inputs.cache_seqlens[row]) == position + 1
        used = inputs.block_table[row, : index + 1].cpu()
        assert torch.equal(used, expected_tables[slot, : index + 1])
        assert bool((inputs.block_table[row, index + 1 :] == -5).all())
    padding = slice(len(rows), None)
    assert inputs.token_ids[padding].tolist() == [0] * num_padding
    assert inputs.slot_mapping[padding].tolist() == [-1] * num_padding
    assert inputs.cache_seqlens[padding].tolist() == [0] * num_padding
    assert bool((inputs.block_table[padding] == -5).all())


def test_a_block_may_come_before_it_is_needed(device: torch.device) -> None:
    columns = columns_on(device, 1)
    columns.slots[0], columns.positions[0] = 2, 15
    columns.new_index[0], columns.new_block[0] = 1, 44
    tables = torch.full((NUM_SLOTS, WIDTH), 9, dtype=torch.int32, device=device)
    inputs = DecodeInputs.allocate(1, num_blocks=WIDTH, device=device)
    last_tokens = torch.zeros(NUM_SLOTS, dtype=torch.int64, device=device)
    for position in (15, 16):
        columns.positions[0] = position
        prepare_decode(columns, inputs, last_tokens=last_tokens, tables=tables, block_size=16)
        columns.new_index[0] = NO_BLOCK
    assert int(tables[2, 1]) == 44
    assert int(inputs.slot_mapping[0]) == 44 * 16
    columns.slots[0] = NO_SLOT
    prepare_decode(columns, inputs, last_tokens=last_tokens, tables=tables, block_size=16)
    assert int(inputs.cache_seqlens[0]) == 0
