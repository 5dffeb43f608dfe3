"""The hash-token model itself: its rule, and that its cache notices what it must."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.hash_runner import HashRunner
from tests.fakes.hash_tokens import expected_tokens
from worker_svc.batch_step import BatchStep, SamplingColumns

BLOCK_SIZE = 4
VOCAB_SIZE = 60
PROMPT = [9, 8, 7, 6, 5, 4, 3]


def new_runner() -> HashRunner:
    return HashRunner(num_blocks=20, block_size=BLOCK_SIZE, num_slots=2, vocab_size=VOCAB_SIZE)


def row(tokens: list[int], start: int, blocks: list[int], *, is_decode: bool = False) -> BatchStep:
    """A step with slot 0 alone."""
    return BatchStep(
        slots=np.array([0], np.int32),
        num_tokens=np.array([len(tokens)], np.int32),
        start_positions=np.array([start], np.int32),
        is_decode=np.array([is_decode]),
        samples=np.array([True]),
        token_ids=np.array(tokens, np.int32),
        block_table=np.array([blocks], np.int32),
        sampling=SamplingColumns.greedy(1),
    )


@given(st.lists(st.integers(1, 7), min_size=1, max_size=7), st.permutations(range(1, 10)))
def test_chunks_and_blocks_of_any_kind_give_the_same_stream(
    sizes: list[int], blocks: list[int]
) -> None:
    runner, start, sampled = new_runner(), 0, 0
    for size in sizes:
        chunk = PROMPT[start : start + size]
        if chunk:
            sampled = int(runner.execute(row(chunk, start, blocks)).tokens[0])
            start += len(chunk)
    assert [sampled] == expected_tokens(PROMPT[:start], 1, vocab_size=VOCAB_SIZE)
    second = runner.execute(row([0], start, blocks, is_decode=True)).tokens.tolist()
    assert second == expected_tokens(PROMPT[:start], 2, vocab_size=VOCAB_SIZE)[1:]


def test_a_wrong_block_changes_the_token() -> None:
    runner = new_runner()
    right = runner.execute(row(PROMPT, 0, [1, 2, 3])).tokens.tolist()
    assert right == expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)
    expected = expected_tokens(PROMPT, 2, vocab_size=VOCAB_SIZE)[1:]
    wrong = runner.execute(row([0], len(PROMPT), [1, 5, 3], is_decode=True)).tokens.tolist()
    assert wrong != expected


def test_a_wrong_position_changes_the_token() -> None:
    runner = new_runner()
    moved = runner.execute(row(PROMPT, 1, [1, 2, 3])).tokens.tolist()
    assert moved != expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


def test_a_stale_prefix_changes_the_token() -> None:
    runner = new_runner()
    runner.execute(row(PROMPT, 0, [1, 2]))
    runner.execute(row([1, 1, 1, 1], 0, [1]))  # another sequence took the block
    stale = runner.execute(row(PROMPT[4:], 4, [1, 3])).tokens.tolist()
    assert stale != expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


@given(st.lists(st.integers(0, 19), min_size=1, max_size=20))
def test_greedy_streams_ignore_the_seed_and_sampled_ones_do_not(prompt: list[int]) -> None:
    greedy = [expected_tokens(prompt, 8, vocab_size=1000, seed=seed) for seed in (1, 2)]
    assert greedy[0] == greedy[1]
    sampled = [
        expected_tokens(prompt, 8, vocab_size=1000, seed=seed, temperature=1.0) for seed in (1, 2)
    ]
    assert sampled[0] != sampled[1]


@given(st.integers(0, 1000), st.integers(0, 12))
def test_stop_ids_end_the_stream_but_not_below_min_position(seed: int, min_tokens: int) -> None:
    tokens = expected_tokens(
        PROMPT,
        12,
        vocab_size=5,
        seed=seed,
        temperature=1.0,
        stop_token_ids=[1, 3],
        min_position=len(PROMPT) + min_tokens,
    )
    assert len(tokens) >= min(min_tokens + 1, 12)
    assert not {1, 3} & set(tokens[:-1])
    assert len(tokens) == 12 or tokens[-1] in {1, 3}


def test_eos_every_ends_streams_early_on_average() -> None:
    lengths = [
        len(
            expected_tokens(
                PROMPT,
                200,
                vocab_size=30_000,
                seed=seed,
                temperature=1.0,
                stop_token_ids=[2],
                eos_every=8,
            )
        )
        for seed in range(200)
    ]
    assert 5 < sum(lengths) / len(lengths) < 12
