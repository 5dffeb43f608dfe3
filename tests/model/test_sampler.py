"""The sampler chooses what its float64 reference chooses, row by row, whatever the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.model.wishes import Wish, choose, random_logits, tokens_of
from worker_svc.batch_step import TokenMasks
from worker_svc.execution.sampling_reference import margin

MARGIN = 1e-4


wishes_strategy = st.builds(
    Wish,
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(1, 10_000),
    temperature=st.one_of(st.just(0.0), st.floats(1e-4, 3.0)),
    top_k=st.one_of(st.just(0), st.integers(-1, 400), st.just(10**9)),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    min_position=st.integers(0, 10_000),
    stop_ids=st.lists(st.integers(0, 299), max_size=3).map(tuple),
)


@given(wishes=st.lists(wishes_strategy, min_size=1, max_size=6), seed=st.integers(0, 2**16))
def test_each_row_chooses_within_the_margin_of_the_float64_reference(
    wishes: list[Wish], seed: int
) -> None:
    logits = random_logits(len(wishes), 300, seed=seed)
    for row, (token, wish) in enumerate(zip(tokens_of(logits, wishes), wishes, strict=True)):
        assert margin(logits[row].double().numpy(), token, wish.reference()) < MARGIN


@given(
    wishes=st.lists(wishes_strategy, min_size=2, max_size=8),
    seed=st.integers(0, 2**16),
)
def test_a_row_chooses_the_same_alone_and_in_a_batch(wishes: list[Wish], seed: int) -> None:
    # scenario SMP-08
    logits = random_logits(len(wishes), 300, seed=seed)
    together = tokens_of(logits, wishes)
    alone = [tokens_of(logits[i : i + 1], [wish])[0] for i, wish in enumerate(wishes)]
    assert together == alone


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-30, 1e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    # scenarios SMP-01, SMP-02
    logits = random_logits(1, 5000) * 100
    assert tokens_of(logits, [Wish(temperature=temperature, top_p=0.5, top_k=3)]) == [
        int(logits[0].argmax())
    ]


def test_one_batch_mixes_greedy_and_random_rows() -> None:
    # scenario SMP-01
    logits = random_logits(1, 4000).repeat(4, 1)
    wishes = [Wish(temperature=t, seed=9) for t in (0.0, 1e-12, 0.7, 2.0)]
    tokens = tokens_of(logits, wishes)
    assert tokens[0] == tokens[1] == int(logits[0].argmax())
    for token, wish in zip(tokens, wishes, strict=True):
        assert margin(logits[0].double().numpy(), token, wish.reference()) < MARGIN


def test_small_temperature_on_large_logits_stays_finite() -> None:
    # scenario SMP-02
    logits = random_logits(1, 1000) * 1e4
    wishes = [Wish(temperature=1e-4), Wish(temperature=1e-4, top_k=5, top_p=0.9, min_p=0.1)]
    tokens = tokens_of(logits.repeat(2, 1), wishes)
    assert tokens == [int(logits[0].argmax())] * 2


def test_any_top_k_is_accepted_beside_any_other() -> None:
    # scenario SMP-04
    num_ids = 500
    logits = random_logits(1, num_ids).repeat(6, 1)
    wishes = [Wish(top_k=k, seed=3) for k in (-1, 0, 1, 50, num_ids, 10**9)]
    tokens = tokens_of(logits, wishes)
    off = [tokens[0], tokens[1], tokens[4], tokens[5]]
    assert len(set(off)) == 1
    assert tokens[2] == int(logits[0].argmax())
    assert tokens[3] in logits[0].topk(50).indices.tolist()


def test_equal_logits_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 700)
    logits[0, 300] = logits[0, 600] = 1.0
    assert tokens_of(logits, [Wish(temperature=0.0)]) == [300]


def test_choices_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    count = 20_000
    wishes = [Wish(seed=11, position=1 + i) for i in range(count)]
    tokens = choose(probabilities.log().repeat(count, 1), wishes).tokens
    shares = torch.bincount(tokens, minlength=5) / count
    assert float((shares - probabilities).abs().max()) < 0.015


def test_seed_and_position_change_the_choice() -> None:
    logits = torch.zeros(1, 50_000)
    wishes = [Wish(seed=1), Wish(seed=2), Wish(seed=1, position=2), Wish(seed=1 + 2**40)]
    assert len({tokens_of(logits, [wish])[0] for wish in wishes}) == 4


def test_ids_unknown_to_the_tokenizer_are_never_chosen() -> None:
    # scenario LEN-11
    logits = random_logits(2, 300)
    logits[:, 260:] = 100.0
    wishes = [Wish(temperature=0.0), Wish(top_k=20, top_p=0.9)]
    choice = choose(logits, wishes, num_tokenizer_ids=260)
    assert bool((choice.tokens < 260).all())
    assert not bool(choice.failed.any())


def test_stop_ids_wait_for_their_position() -> None:
    # scenarios EOS-02, EOS-04
    logits = torch.zeros(4, 100)
    logits[:, [99, 42]] = 50.0
    wish = Wish(temperature=0.0, stop_ids=(42, 99), min_position=10)
    positions = (8, 9, 10, 11)
    tokens = tokens_of(logits, [replace(wish, position=position) for position in positions])
    assert tokens == [0, 0, 42, 42]


def test_a_row_without_stop_ids_keeps_the_last_id() -> None:
    # scenario EOS-04: padding of the stop ids is not an index
    logits = torch.zeros(2, 100)
    logits[:, 99] = 50.0
    early = Wish(temperature=0.0, stop_ids=(1, 2), min_position=10)
    assert tokens_of(logits, [early, replace(early, stop_ids=())]) == [99, 99]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_fails_alone(broken: float) -> None:
    # scenario TP-08
    logits = random_logits(4, 200)
    wishes = [
        Wish(temperature=0.0),
        Wish(temperature=0.9, seed=5),
        Wish(temperature=0.9, seed=6, top_k=20, top_p=0.8, min_p=0.01),
        Wish(temperature=0.9, seed=7, top_p=0.9),
    ]
    expected = tokens_of(logits, wishes)
    for row in range(4):
        poisoned = logits.clone()
        poisoned[row, 150] = broken
        choice = choose(poisoned, wishes)
        assert choice.failed.tolist() == [other == row for other in range(4)]
        assert int(choice.tokens[row]) == 0
        others = [other for other in range(4) if other != row]
        assert choice.tokens[others].tolist() == [expected[other] for other in others]


def test_a_row_left_without_ids_fails_alone() -> None:
    # scenario EOS-05: the only ids are stop ids, too early
    logits = torch.zeros(2, 3)
    wish = Wish(temperature=0.0, stop_ids=(0, 1, 2), min_position=5)
    choice = choose(logits, [wish, replace(wish, position=5)])
    assert choice.failed.tolist() == [True, False]


@given(
    allowed=st.lists(st.sets(st.integers(0, 149), min_size=1), min_size=1, max_size=3),
    first=st.integers(0, 2),
)
def test_masked_rows_choose_allowed_ids_only(allowed: list[set[int]], first: int) -> None:
    rows = np.arange(first, first + len(allowed), dtype=np.int32)
    words = np.zeros((len(allowed), 5), np.uint32)
    for row, ids in enumerate(allowed):
        for token in ids:
            words[row, token // 32] |= np.uint32(1 << token % 32)
    logits = random_logits(6, 150)
    wishes = [Wish(temperature=0.8, seed=row, top_p=0.9 if row % 2 else 1.0) for row in range(6)]
    masks = TokenMasks(rows=rows, words=words.view(np.int32))
    masked = choose(logits, wishes, masks=masks)
    free = choose(logits, wishes)
    assert not bool(masked.failed.any())
    for row in range(6):
        if first <= row < first + len(allowed):
            assert int(masked.tokens[row]) in allowed[row - first]
        else:
            assert int(masked.tokens[row]) == int(free.tokens[row])


def test_ids_beyond_a_short_mask_are_not_allowed() -> None:
    logits = torch.zeros(1, 150)
    logits[0, 140] = 50.0
    words = np.full((1, 4), -1, np.int32)
    masks = TokenMasks(rows=np.zeros(1, np.int32), words=words)
    assert int(choose(logits, [Wish(temperature=0.0)], masks=masks).tokens[0]) == 0
