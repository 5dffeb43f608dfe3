"""Made-up tokens are a function of segments, and prompts share what their segments share."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.prompts import EOS, VOCAB_SIZE, Segment, piece_keys, prompt_tokens

SEGMENTS = st.lists(
    st.builds(Segment, key=st.integers(1, 6), num_tokens=st.integers(1, 40)), min_size=1, max_size=6
)
NO_ANSWERS: frozenset[int] = frozenset()


def num_shared(first: np.ndarray, second: np.ndarray) -> int:
    shortest = min(len(first), len(second))
    differs = np.flatnonzero(first[:shortest] != second[:shortest])
    return int(differs[0]) if len(differs) else shortest


@given(SEGMENTS, SEGMENTS)
def test_piece_keys_agree_exactly_as_far_as_segments_do(
    first: list[Segment], second: list[Segment]
) -> None:
    keys, others = (piece_keys(each, piece_tokens=4) for each in (first, second))
    shared = 0
    while shared < min(len(keys), len(others)) and keys[shared] == others[shared]:
        shared += 1
    tokens, other_tokens = (prompt_tokens(each, NO_ANSWERS) for each in (first, second))
    assert shared <= num_shared(tokens, other_tokens) // 4
    assert len(set(keys)) == len(keys) == len(tokens) // 4


def test_a_prompt_that_continues_another_begins_with_its_keys() -> None:
    start = [Segment(1, 100), Segment(2, 30)]
    keys = piece_keys(start, piece_tokens=16)
    assert piece_keys([*start, Segment(3, 50)], piece_tokens=16)[: len(keys)] == keys


def test_tokens_depend_on_the_key_alone_and_never_end_an_answer() -> None:
    first = prompt_tokens([Segment(7, 500)], NO_ANSWERS)
    again = prompt_tokens([Segment(7, 300), Segment(8, 200)], NO_ANSWERS)
    assert np.array_equal(first[:300], again[:300])
    assert not np.array_equal(first[300:], again[300:])
    assert first.min() > EOS
    assert first.max() < VOCAB_SIZE


def test_an_answer_in_a_prompt_ends_with_the_end_token_it_was_given_with() -> None:
    tokens = prompt_tokens([Segment(7, 10), Segment(8, 5)], frozenset({7}))
    assert tokens[9] == EOS
    assert (np.delete(tokens, 9) != EOS).all()
