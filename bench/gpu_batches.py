"""Steps made by hand, for benchmarks of a GPU runner. Knows no model's weights."""

import numpy as np

from worker_svc.batch_step import BatchStep, NewBlocks, SamplingColumns

NUM_TOKENIZER_IDS = 151_669


def decode_step(num_rows: int, position: int, *, has_filters: bool = False) -> BatchStep:
    """Rows that continue at one position, at temperature 0.6; filters are Qwen3's usual ones."""
    step = _step(
        np.ones(num_rows, np.int32),
        np.full(num_rows, position, np.int32),
        np.ones(num_rows, np.bool_),
    )
    if has_filters:
        step.sampling.top_k[:] = 20
        step.sampling.top_p[:] = 0.95
    return step


def mixed_step(num_tokens: int, num_decode_rows: int, position: int) -> BatchStep:
    """A prompt behind decode rows."""
    lengths = np.ones(num_decode_rows + 1, np.int32)
    lengths[-1] = num_tokens
    starts = np.full(num_decode_rows + 1, position, np.int32)
    starts[-1] = 0
    return _step(lengths, starts, np.arange(num_decode_rows + 1) < num_decode_rows)


def _step(lengths: np.ndarray, starts: np.ndarray, is_decode: np.ndarray) -> BatchStep:
    count = lengths.size
    none = np.zeros(0, np.int32)
    greedy = SamplingColumns.greedy(count)
    sampling = SamplingColumns(
        temperature=np.full(count, 0.6, np.float32),
        top_k=greedy.top_k,
        top_p=greedy.top_p,
        min_p=greedy.min_p,
        seed=np.arange(count, dtype=np.uint64),
        min_position=greedy.min_position,
        stop_ids=np.full((count, 2), -1, np.int32),
    )
    draw = np.random.default_rng(1)
    return BatchStep(
        slots=np.arange(count, dtype=np.int32),
        num_tokens=lengths,
        start_positions=starts,
        is_decode=is_decode,
        samples=np.ones(count, np.bool_),
        token_ids=draw.integers(0, NUM_TOKENIZER_IDS, int(lengths.sum())).astype(np.int32),
        block_table=np.zeros((count, 0), np.int32),
        sampling=sampling,
        new_blocks=NewBlocks(none, none, none),
    )
