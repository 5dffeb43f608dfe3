"""Rules change logits as the float64 reference and transformers' processors do."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tests.model.wishes import Wish, random_logits, rules, tokens_of
from worker_svc.execution.logit_edits import SlotHistories, edit_row, forbidden_ids
from worker_svc.execution.sampling_reference import margin
from worker_svc.slot_rules import RulesFault, SlotRules

NUM_IDS = 300
MARGIN = 1e-4
ids = st.integers(0, NUM_IDS - 1)
few_ids = st.integers(0, 5)  # so that sequences match


@st.composite
def drawn_rules(draw: st.DrawFn) -> SlotRules:
    """Rules of any mix, with a history in which things repeat."""
    history = draw(st.lists(st.one_of(ids, few_ids), min_size=1, max_size=30))
    penalty = st.one_of(st.just(0.0), st.floats(-2, 2, width=32))
    fields: dict[str, Any] = {
        "repetition_penalty": draw(
            st.one_of(st.just(1.0), st.sampled_from((0.01, 0.5, 1.3, 100.0)))
        ),
        "frequency_penalty": draw(penalty),
        "presence_penalty": draw(penalty),
        # so that there is always something
        "has_logprobs": True,
    }
    return rules(
        history=history,
        num_prompt_tokens=draw(st.integers(0, len(history))),
        bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=4)),
        allowed=draw(st.one_of(st.just(()), st.sets(ids, min_size=50, max_size=200))),
        bad_sequences=draw(st.lists(st.lists(few_ids, min_size=1, max_size=3), max_size=4)),
        **fields,
    )


@given(made=drawn_rules(), seed=st.integers(0, 2**16), temperature=st.sampled_from((0.0, 0.8)))
def test_each_choice_is_within_the_margin_of_the_float64_reference(
    made: SlotRules, seed: int, temperature: float
) -> None:
    logits = random_logits(1, NUM_IDS, seed=seed)
    wish = Wish(seed=seed, temperature=temperature, top_k=seed % 3 * 20, top_p=0.9, rules=made)
    [token] = tokens_of(logits, [wish])
    assert margin(logits[0].double().numpy(), token, wish.reference()) < MARGIN


def edited(logits: torch.Tensor, made: SlotRules) -> torch.Tensor:
    ours = logits.clone()
    edit_row(ours, made, made.history, first_id=0)
    return ours


@given(
    history=st.lists(few_ids, min_size=1, max_size=20),
    penalty=st.sampled_from((0.3, 1.7)),
    bias=st.dictionaries(ids, st.floats(-10, 10, width=32), min_size=1, max_size=4),
    bad=st.lists(
        st.lists(few_ids, min_size=1, max_size=3), min_size=1, max_size=4, unique_by=tuple
    ),
    seed=st.integers(0, 2**16),
)
def test_logits_are_those_of_transformers_processors(
    history: list[int], penalty: float, bias: dict[int, float], bad: list[list[int]], seed: int
) -> None:
    logits = random_logits(1, NUM_IDS, seed=seed)
    seen = torch.tensor([history])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(seen, logits.clone())
    # they drop a bias of nothing
    shifts = {(token,): shift for token, shift in bias.items() if shift}
    if shifts:
        expected = SequenceBiasLogitsProcessor(shifts)(seen, expected)
    expected = NoBadWordsLogitsProcessor(bad)(seen, expected)
    made = rules(history=history, repetition_penalty=penalty, bias=bias, bad_sequences=bad)
    torch.testing.assert_close(edited(logits[0], made), expected[0])


def test_frequency_and_presence_count_the_output_alone() -> None:
    made = rules(
        history=[4, 4, 5, 4, 6, 6, 6],
        num_prompt_tokens=3,
        frequency_penalty=0.5,
        presence_penalty=1.0,
    )
    ours = edited(torch.zeros(NUM_IDS), made)
    assert ours[[4, 5, 6]].tolist() == [-1.5, 0.0, -2.5]
    assert int((ours != 0).sum()) == 2


def test_repetition_counts_the_prompt_too() -> None:
    made = rules(history=[4, 5], num_prompt_tokens=2, repetition_penalty=2.0)
    logits = torch.zeros(NUM_IDS)
    logits[[4, 5, 6]] = torch.tensor([3.0, -3.0, 3.0])
    assert edited(logits, made)[[4, 5, 6]].tolist() == [1.5, -6.0, 3.0]


@given(made=drawn_rules(), border=st.integers(1, NUM_IDS - 1), seed=st.integers(0, 2**16))
def test_parts_of_the_vocabulary_are_edited_as_the_whole(
    made: SlotRules, border: int, seed: int
) -> None:
    logits = random_logits(1, NUM_IDS, seed=seed)[0]
    parts = [logits[:border].clone(), logits[border:].clone()]
    for part, first_id in zip(parts, (0, border), strict=True):
        edit_row(part, made, made.history, first_id=first_id)
    torch.testing.assert_close(torch.cat(parts), edited(logits, made), rtol=0, atol=0)


def test_a_sequence_longer_than_the_history_forbids_nothing() -> None:
    one = rules(history=[3], bad_sequences=[[3, 3, 9], [3, 9], [7]], num_prompt_tokens=1)
    assert forbidden_ids(one.bad_sequences, np.array([3], np.int32)).tolist() == [9, 7]
    assert forbidden_ids(one.bad_sequences, np.array([], np.int32)).tolist() == [7]


def test_a_history_begins_anew_with_each_start() -> None:
    histories = SlotHistories()
    first, second = (rules(history=[1, 2], presence_penalty=1.0) for _ in range(2))
    assert histories.of(0, first).tolist() == [1, 2]
    histories.note(0, first, 7)
    assert histories.of(0, first).tolist() == [1, 2, 7]
    assert histories.of(0, second).tolist() == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"history": [300]},
        {"bias": {5: float("nan")}},
        {"bad_sequences": [[1], []]},
        {"bad_sequences": [[1] * 1025]},
        {"repetition_penalty": -0.5},
        {"presence_penalty": float("inf")},
        {"num_top_logprobs": 301, "has_logprobs": True},
        {"presence_penalty": 1.0, "num_prompt_tokens": 3},
        {"start": {"prompt_records_from": 4}, "num_prompt_tokens": 4, "history": [1] * 4},
    ],
)
def test_rules_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RulesFault):
        rules(**fields)
