"""Turns a step's columns into the batch that layers read. Knows no weights and no sampling.

Legend: R rows, T tokens, W blocks in the widest table, S rows that sample, B tokens in a block.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.batch_step import BatchStep, InvalidStepError
from worker_svc.execution.forward_batch import ForwardBatch

_Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a step's columns must stay within."""

    num_slots: int
    num_blocks: int
    block_size: int
    num_positions: int
    vocab_size: int


def check_step(step: BatchStep, limits: BatchLimits) -> None:
    """Raise `InvalidStepError` for a step that would read or write outside its memory."""
    num_rows = step.slots.shape[0]
    for column in ("num_tokens", "start_positions", "is_decode", "samples", "block_table"):
        if getattr(step, column).shape[0] != num_rows:
            raise InvalidStepError(column, f"must have one entry for each of {num_rows} rows")
    if num_rows == 0:
        return
    _check_range("slots", step.slots, 0, limits.num_slots)
    _check_range("num_tokens", step.num_tokens, 1, limits.num_positions + 1)
    _check_range("start_positions", step.start_positions, 0, limits.num_positions)
    ends = step.start_positions + step.num_tokens
    _check_range("start_positions + num_tokens", ends, 1, limits.num_positions + 1)
    _check_range("num_tokens of decode rows", step.num_tokens[step.is_decode], 1, 2)
    if step.token_ids.shape[0] != int(step.num_tokens.sum()):
        raise InvalidStepError("token_ids", "must have one entry for each token of num_tokens")
    _check_range("token_ids", step.token_ids, 0, limits.vocab_size)
    num_blocks = -(-ends // limits.block_size)
    if int(num_blocks.max()) > step.block_table.shape[1]:
        raise InvalidStepError("block_table", "is narrower than a row's last position")
    is_used = np.arange(step.block_table.shape[1]) < num_blocks[:, None]
    _check_range("block_table", step.block_table[is_used], 1, limits.num_blocks)


def build_batch(step: BatchStep, *, last_tokens: torch.Tensor, block_size: int) -> ForwardBatch:
    """The batch of a checked, non-empty step; decode rows take their token from `last_tokens`.

    Rows with one token come first, longest first, so that like lengths are neighbours.
    """
    device = last_tokens.device
    order = _row_order(step)
    lengths = step.num_tokens[order].astype(np.int64)
    starts = step.start_positions[order].astype(np.int64)
    table = step.block_table[order]
    first_tokens = np.zeros(lengths.shape[0] + 1, np.int64)
    np.cumsum(lengths, out=first_tokens[1:])
    row_of_token = np.repeat(np.arange(lengths.shape[0]), lengths)
    offsets = np.arange(first_tokens[-1]) - first_tokens[row_of_token]
    positions = starts[row_of_token] + offsets
    blocks = table[row_of_token, positions // block_size]
    token_ids = torch.from_numpy(_tokens_in_order(step, order, row_of_token, offsets)).to(device)
    _take_last_tokens(token_ids, step, order, first_tokens, last_tokens)
    key_lens = starts + lengths
    return ForwardBatch(
        token_ids=token_ids,
        positions=torch.from_numpy(positions).to(device),
        slot_mapping=torch.from_numpy(blocks * np.int64(block_size) + positions % block_size).to(
            device
        ),
        block_table=torch.from_numpy(table).to(device),
        cu_seqlens_q=torch.from_numpy(first_tokens.astype(np.int32)).to(device),
        cache_seqlens=torch.from_numpy(key_lens.astype(np.int32)).to(device),
        last_indexes=torch.from_numpy(_last_indexes(step, order, first_tokens)).to(device),
        query_lens=tuple(lengths.tolist()),
        key_lens=tuple(key_lens.tolist()),
        num_single_rows=int((lengths == 1).sum()),
    )


def first_indexes(step: BatchStep) -> _Indexes:
    """[R]: where each row's first token is among the tokens of `build_batch`."""
    order = _row_order(step)
    lengths = step.num_tokens[order].astype(np.int64)
    firsts = np.empty(order.shape[0], np.int64)
    firsts[order] = np.cumsum(lengths) - lengths
    return firsts


def _check_range(column: str, values: npt.NDArray[np.int32], low: int, end: int) -> None:
    if values.size and (int(values.min()) < low or int(values.max()) >= end):
        raise InvalidStepError(column, f"must lie within {low}..{end - 1}")


def _row_order(step: BatchStep) -> _Indexes:
    # lexsort's last key counts most
    order: _Indexes = np.lexsort((-step.start_positions, step.num_tokens > 1))
    return order


def _tokens_in_order(
    step: BatchStep, order: _Indexes, row_of_token: _Indexes, offsets: _Indexes
) -> _Indexes:
    first_of_row = np.cumsum(step.num_tokens, dtype=np.int64) - step.num_tokens
    places = first_of_row[order][row_of_token] + offsets
    tokens: _Indexes = step.token_ids[places].astype(np.int64)
    return tokens


def _take_last_tokens(
    token_ids: torch.Tensor,
    step: BatchStep,
    order: _Indexes,
    first_tokens: _Indexes,
    last_tokens: torch.Tensor,
) -> None:
    is_decode = step.is_decode[order]
    if is_decode.any():
        places = torch.from_numpy(first_tokens[:-1][is_decode]).to(token_ids.device)
        slots = torch.from_numpy(step.slots[order][is_decode]).to(token_ids.device)
        token_ids.index_copy_(0, places, last_tokens.index_select(0, slots))


def _last_indexes(step: BatchStep, order: _Indexes, first_tokens: _Indexes) -> _Indexes:
    """Of the rows that sample, in the step's own order."""
    last_of_row = np.empty(order.shape[0], np.int64)
    last_of_row[order] = first_tokens[1:] - 1
    sampling: _Indexes = last_of_row[step.samples]
    return sampling
