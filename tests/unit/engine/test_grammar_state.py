"""Outputs in their grammars: which ids may come, and when an output may end."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from scheduler_svc.engine.grammar import state as state_module
from scheduler_svc.engine.grammar.state import CannotGoOn
from scheduler_svc.engine.grammar.vocabulary import (
    UnusableTokenizer,
    Vocabulary,
    load_vocabulary,
)
from tests.fakes.byte_tokenizer import END_ID, END_OF_TEXT_ID, NUM_IDS, START_ID
from tests.unit.engine.grammar_rig import (
    VOCAB_SIZE,
    allowed_ids,
    byte_vocabulary,
    ids_of,
    masks_of,
    row_of,
    wander,
    wanted,
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return byte_vocabulary(tmp_path_factory.mktemp("tokenizer"))


def ids(characters: str) -> set[int]:
    return {ids_of(each)[0] for each in characters}


def test_the_end_is_allowed_exactly_where_the_form_may_stop(vocabulary: Vocabulary) -> None:
    state = wanted(vocabulary, "REGEX", "ab?|c").begin()
    assert allowed_ids(masks_of(row_of(state, []))) == ids("ac")
    assert allowed_ids(masks_of(row_of(state, ids_of("a")))) == ids("b") | {END_ID}
    assert allowed_ids(masks_of(row_of(state, ids_of("b"), first_index=1))) == {END_ID}


def test_each_request_has_end_ids_of_its_own(vocabulary: Vocabulary) -> None:
    state = wanted(
        vocabulary,
        "REGEX",
        "ax?",
        eos_token_ids=[END_OF_TEXT_ID],
        stop_token_ids=[*ids("x"), START_ID],
    ).begin()
    assert allowed_ids(masks_of(row_of(state, []))) == ids("a")
    after = allowed_ids(masks_of(row_of(state, ids_of("a"))))
    assert after == ids("x") | {END_OF_TEXT_ID, START_ID}


def test_min_tokens_comes_before_an_end(vocabulary: Vocabulary) -> None:
    state = wanted(vocabulary, "REGEX", "a*", min_tokens=2).begin()
    assert allowed_ids(masks_of(row_of(state, ids_of("a")))) == ids("a")
    assert allowed_ids(masks_of(row_of(state, ids_of("aa")))) == ids("a") | {END_ID}


def test_a_form_that_is_complete_before_min_tokens_cannot_go_on(vocabulary: Vocabulary) -> None:
    state = wanted(vocabulary, "REGEX", "ab", min_tokens=3).begin()
    masks = masks_of(row_of(state, ids_of("ab")))
    [(_, reason)] = masks.failed
    assert "complete after 2 tokens" in reason
    assert "min_tokens asks for 3" in reason
    assert len(allowed_ids(masks)) >= VOCAB_SIZE


def test_allowed_ids_and_the_form_hold_together(vocabulary: Vocabulary) -> None:
    def allowing(text: str) -> bytes:
        return np.array(sorted(ids(text)), "<i4").tobytes()

    state = wanted(vocabulary, "REGEX", "[ab]c", sampling={"allowed_token_ids": allowing("bx")})
    assert allowed_ids(masks_of(row_of(state.begin(), []))) == ids("b")
    masks = masks_of(row_of(state.begin(), ids_of("b")))
    assert [reason for _, reason in masks.failed] == [
        "structured_output: no token that the request allows can go on with the form"
    ]


def test_every_id_but_the_end_may_come_before_the_form_begins(vocabulary: Vocabulary) -> None:
    [mark] = ids("#")
    state = wanted(vocabulary, "REGEX", "a", begins_after=mark).begin()
    assert allowed_ids(masks_of(row_of(state, ids_of("xyz")))) == set(range(288)) - {END_ID}
    after = masks_of(row_of(state, ids_of("#"), first_index=3))
    assert allowed_ids(after) == ids("a")
    assert allowed_ids(masks_of(row_of(state, ids_of("a"), first_index=4))) == {END_ID}


def test_tokens_that_do_not_fit_end_the_output(vocabulary: Vocabulary) -> None:
    grammar = wanted(vocabulary, "REGEX", "ab")
    masks = masks_of(
        row_of(grammar.begin(), ids_of("ax"), slot=0), row_of(grammar.begin(), [], slot=1)
    )
    [(row, reason)] = masks.failed
    assert row.slot == 0
    assert "does not fit" in reason
    assert allowed_ids(masks, 1) == ids("a")


def test_no_id_beyond_the_tokenizers_is_allowed(vocabulary: Vocabulary) -> None:
    masks = masks_of(row_of(wanted(vocabulary, "REGEX", "(?s:.*)").begin(), []))
    assert max(allowed_ids(masks)) < NUM_IDS


def test_a_model_with_fewer_rows_than_ids_gets_a_mask_that_fits(vocabulary: Vocabulary) -> None:
    state = wanted(vocabulary, "REGEX", "[ab]").begin()
    assert allowed_ids(masks_of(row_of(state, []), vocab_size=100), vocab_size=100) == ids("ab")


def test_replayed_tokens_lead_to_the_same_masks(vocabulary: Vocabulary) -> None:
    schema = '{"type": "array", "items": {"enum": ["ab", "abc", 17, null]}, "maxItems": 5}'
    grammar = wanted(vocabulary, "JSON_SCHEMA", schema)
    draw = Random(3)
    for _ in range(20):
        tokens, _ = wander(grammar, draw, most=30)
        known, cut = grammar.begin(), draw.randrange(len(tokens) + 1)
        for count in range(cut):
            first = max(count - 1, 0)
            masks_of(row_of(known, tokens[first:count], first_index=first))
        # all of them again, as when the output starts again; and by one that has seen nothing
        again = masks_of(row_of(known, tokens))
        assert again.masks == masks_of(row_of(grammar.begin(), tokens)).masks


def test_other_tokens_replace_what_was_known(vocabulary: Vocabulary) -> None:
    state = wanted(vocabulary, "REGEX", "ab|cd").begin()
    assert allowed_ids(masks_of(row_of(state, ids_of("a")))) == ids("b")
    assert allowed_ids(masks_of(row_of(state, ids_of("c")))) == ids("d")
    assert allowed_ids(masks_of(row_of(state, []))) == ids("ac")


def test_many_rows_are_masked_as_one_by_one(vocabulary: Vocabulary) -> None:
    grammar = wanted(vocabulary, "JSON_SCHEMA", '{"type": "object"}')
    texts = ["", "{", '{"', '{"a', '{"a"', '{"a":', '{"a":1', '{"a":[', "{}"] * 3
    together = masks_of(*[row_of(grammar.begin(), ids_of(text)) for text in texts])
    alone = [masks_of(row_of(grammar.begin(), ids_of(text))).masks for text in texts]
    assert together.masks == b"".join(alone)


def test_a_grammar_too_slow_to_follow_ends_the_output(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "_LEAST_LIMIT_S", -1.0)
    with pytest.raises(CannotGoOn, match="takes too long"):
        wanted(vocabulary, "REGEX", "a*").begin().follow(0, np.array(ids_of("aa"), np.int32))


def test_a_fault_while_masks_are_made_ends_the_outputs_and_not_the_step(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = wanted(vocabulary, "REGEX", "a*").begin()
    monkeypatch.setattr(state_module.OutputState, "finish_mask", lambda *_: 1 / 0)
    masks = masks_of(row_of(state, []), row_of(state, []))
    assert [reason for _, reason in masks.failed] == [
        "structured_output: a fault of the service"
    ] * 2
    assert len(allowed_ids(masks, 1)) >= VOCAB_SIZE


def test_a_folder_without_a_usable_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnusableTokenizer, match=r"tokenizer\.json cannot be used"):
        load_vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnusableTokenizer, match=r"tokenizer\.json cannot be used"):
        load_vocabulary(tmp_path)
