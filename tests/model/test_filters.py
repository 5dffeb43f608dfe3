"""Filters keep what transformers' processors keep; their borders follow the scenarios."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.model.wishes import Wish, kept, random_logits


@given(
    wish=st.builds(
        Wish,
        temperature=st.floats(0.05, 3.0),
        top_k=st.integers(1, 400),
        top_p=st.floats(0.01, 0.999),
        min_p=st.floats(0.0, 0.9),
    ),
    seed=st.integers(0, 2**16),
)
def test_filters_keep_what_transformers_keeps(wish: Wish, seed: int) -> None:
    logits = random_logits(1, 300, seed=seed)
    ours = kept(logits, wish)
    # an id at the border of a filter may fall on either side: move the border a little both ways
    fewer, more = (warped(logits, moved(wish, by)) for by in (-1e-5, 1e-5))
    assert bool((fewer <= ours).all())
    assert bool((ours <= more).all())


def moved(wish: Wish, by: float) -> Wish:
    return replace(wish, top_p=min(wish.top_p + by, 1.0), min_p=max(wish.min_p - by, 0.0))


def warped(logits: torch.Tensor, wish: Wish) -> torch.Tensor:
    no_ids = torch.zeros(1, 0, dtype=torch.int64)
    scores = TemperatureLogitsWarper(wish.temperature)(no_ids, logits)
    scores = TopKLogitsWarper(wish.top_k)(no_ids, scores)
    scores = TopPLogitsWarper(wish.top_p)(no_ids, scores)
    kept: torch.Tensor = MinPLogitsWarper(wish.min_p)(no_ids, scores).isfinite()
    return kept


def test_top_p_looks_beyond_its_first_candidates() -> None:
    # almost flat: the nucleus has thousands of ids, more than are sorted at first
    logits = random_logits(2, 9000) * 0.01
    found = kept(logits, Wish(top_p=0.9))
    expected = warped(logits[:1], Wish(top_p=0.9, top_k=9000)).sum()
    assert abs(int(found[0].sum()) - int(expected)) <= 2
    assert int(found[0].sum()) > 7000


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.6, {2, 3}), (0.0, {3}), (0.39, {3}), (0.41, {2, 3}), (0.95, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_token_that_crosses_it(top_p: float, expected: set[int]) -> None:
    # scenario SMP-05
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    assert set(kept(logits, Wish(top_p=top_p))[0].nonzero().flatten().tolist()) == expected


def test_top_p_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(1, 10)
    assert kept(logits, Wish(top_p=0.25))[0].nonzero().flatten().tolist() == [0, 1, 2]
    assert kept(logits, Wish(top_p=0.0))[0].nonzero().flatten().tolist() == [0]


def test_top_p_that_is_met_exactly_takes_no_more() -> None:
    assert int(kept(torch.zeros(1, 4), Wish(top_p=0.5)).sum()) == 2
