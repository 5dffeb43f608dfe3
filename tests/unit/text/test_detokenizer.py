"""Text comes out as it is completed, and joined it is the tokenizer's own decode."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.detokenizer import ByteLevelDetokenizer, Detokenizer
from scheduler_svc.frontend.text.tokenizer import Tokenizer

TEXTS = [
    "👩‍👩‍👧‍👦 and 🏳️‍🌈, 👍🏽!",
    "敏捷的棕色狐狸跳过了懒狗。日本語もある。",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "a real \ufffd stays, and \ufffd\ufffd too",  # DET-04
    "  leading,   many    spaces\t\ttabs\n\n\nlines\r\n  x",  # DET-05
    "```python\ndef f(x):\n    return x  # ok\n```\n",
    "е́ and é and ﷺ and \u200b\u200d",
]


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode the text into ids of which as many as possible are parts of characters."""
    return [
        token_id
        for character in text
        for token_id in tokenizer.encode(character, add_special_tokens=False)
    ]


def run(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    """Push one by one; the last entry is what the flush gives."""
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@pytest.fixture(params=["smollm2", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    value: Tokenizer = request.getfixturevalue(request.param)
    return value


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_any_script_streams_without_replacement_characters(
    tokenizer: Tokenizer, text: str
) -> None:
    # DET-01, DET-04, DET-05
    for ids in (tokenizer.encode(text, add_special_tokens=False), byte_ids(tokenizer, text)):
        expected = tokenizer.decode(ids)
        pieces = run(tokenizer.detokenizer([]), ids)
        assert "".join(pieces) == expected
        assert pieces[-1] == ""
        for so_far in accumulate(pieces):
            assert expected.startswith(so_far)


@pytest.mark.parametrize("text", TEXTS)
def test_generation_begins_anywhere_inside_a_text(tokenizer: Tokenizer, text: str) -> None:
    # DET-01, DET-02: every border between prompt and output
    ids = byte_ids(tokenizer, text)
    whole = tokenizer.decode(ids)
    for border in range(len(ids) + 1):
        shown_by_prompt = run(tokenizer.detokenizer([]), ids[:border])[:-1]
        generated = run(tokenizer.detokenizer(ids[:border]), ids[border:])
        assert "".join(shown_by_prompt) + "".join(generated) == whole


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_half_character_of_the_prompt_is_not_shown_unless_continued(
    qwen3: Tokenizer, num_bytes: int
) -> None:
    # DET-02
    emoji = qwen3_byte_ids(qwen3, "🎉".encode())
    word = qwen3.encode("party", add_special_tokens=False)
    prompt = [*qwen3.encode("let us ", add_special_tokens=False), *emoji[:num_bytes]]
    assert "".join(run(qwen3.detokenizer(prompt), word)) == "party"
    continued = run(qwen3.detokenizer(prompt), [*emoji[num_bytes:], *word])
    assert "".join(continued) == "🎉party"
    assert "".join(run(qwen3.detokenizer(prompt), [])) == ""


def test_half_character_continued_and_then_broken_is_one_replacement(qwen3: Tokenizer) -> None:
    emoji = qwen3_byte_ids(qwen3, "🎉".encode())
    word = qwen3.encode("x", add_special_tokens=False)
    assert "".join(run(qwen3.detokenizer(emoji[:2]), [emoji[2], *word])) == "\ufffdx"


def qwen3_byte_ids(qwen3: Tokenizer, data: bytes) -> list[int]:
    """One id for each byte: the first 256 ids of Qwen3 are the single bytes, in another order."""
    pieces = qwen3._pieces
    assert isinstance(pieces, list)
    as_bytes = [piece.encode() if isinstance(piece, str) else piece for piece in pieces[:256]]
    return [as_bytes.index(bytes((byte,))) for byte in data]


def token_ids(tokenizer_name: str) -> st.SearchStrategy[list[int]]:
    """Random ids, among them many that are parts of characters, and some beyond the table."""
    num_ids = {"smollm2": 49152, "qwen3": 151669}[tokenizer_name]
    return st.lists(
        st.one_of(st.integers(0, 400), st.integers(0, num_ids - 1), st.integers(0, num_ids + 300)),
        max_size=24,
    )


@given(ids=token_ids("smollm2"), skip=st.booleans())
def test_random_smollm2_ids_decode_as_the_tokenizer_decodes_them(
    smollm2: Tokenizer, ids: list[int], *, skip: bool
) -> None:
    check_against_full_decode(smollm2, ids, skip_special_tokens=skip)


@given(ids=token_ids("qwen3"), skip=st.booleans())
def test_random_qwen3_ids_decode_as_the_tokenizer_decodes_them(
    qwen3: Tokenizer, ids: list[int], *, skip: bool
) -> None:
    check_against_full_decode(qwen3, ids, skip_special_tokens=skip)


def check_against_full_decode(
    tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool
) -> None:
    detokenizer = tokenizer.detokenizer([], skip_special_tokens=skip_special_tokens)
    pieces = run(detokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    ends = list(detokenizer.ends)
    assert len(ends) == len(ids)
    assert ends == sorted(ends)
    assert ends[-1:] in ([], [len("".join(pieces))])


@given(ids=token_ids("smollm2"))
def test_a_token_ends_where_its_text_ends_once_that_is_out(
    smollm2: Tokenizer, ids: list[int]
) -> None:
    detokenizer = smollm2.detokenizer([])
    num_out = 0
    for token_id in ids:
        num_out += len(detokenizer.push(token_id))
        has_half_character = detokenizer.ends[-1] > num_out
        assert detokenizer.ends[-1] == num_out + has_half_character


def test_special_tokens_show_only_when_asked(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    assert "".join(run(tokenizer.detokenizer([]), ids)) == "ab"
    shown = run(tokenizer.detokenizer([], skip_special_tokens=False), ids)
    assert "".join(shown) == "a<|im_end|>b"


def test_ids_without_a_token_have_no_text(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.num_ids, tokenizer.num_ids + 1000, 2**31 - 1]
    assert run(tokenizer.detokenizer(ids), ids) == ["", "", "", ""]


class CountingTable(Sequence[str | bytes]):
    """A token table that counts how often it is asked."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = pieces
        self.num_lookups = 0

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> str | bytes:  # type: ignore[override]  # no slices here
        self.num_lookups += 1
        return self.pieces[index]


def test_each_token_costs_one_look_up_however_long_the_output() -> None:
    # DET-08
    table = CountingTable(["word ", b"\xc3", b"\xa9"])
    detokenizer = ByteLevelDetokenizer(table, hidden_ids=frozenset(), prompt_tail=b"")
    ids = [0, 1, 2] * 11_000
    assert "".join(run(detokenizer, ids)) == "word é" * 11_000
    assert table.num_lookups == len(ids)


@given(ids=st.lists(st.integers(0, 275), max_size=24), skip=st.booleans())
@example(ids=[131, 268, 3], skip=False)  # an id without a token inside a run of bytes
def test_random_byte_fallback_ids_decode_as_behind_a_prompt(
    byte_fallback: Tokenizer, ids: list[int], *, skip: bool
) -> None:
    prompt = word_ids(byte_fallback, "▁hello", "▁world")
    detokenizer = byte_fallback.detokenizer(prompt, skip_special_tokens=skip)
    pieces = run(detokenizer, ids)
    shown = byte_fallback.decode(prompt, skip_special_tokens=skip)
    whole = byte_fallback.decode(prompt + ids, skip_special_tokens=skip)
    assert shown + "".join(pieces) == whole
    assert len(detokenizer.ends) == len(ids)
    assert list(detokenizer.ends)[-1:] in ([], [len(whole) - len(shown)])


def word_ids(byte_fallback: Tokenizer, *tokens: str) -> list[int]:
    """The ids of whole-word tokens, which this small vocabulary has no merges for."""
    found = [byte_fallback._backend.token_to_id(token) for token in tokens]
    assert None not in found
    return [token_id for token_id in found if token_id is not None]


def byte_token_ids(text: str) -> list[int]:
    """The ids of the text's bytes, behind the three special tokens."""
    return [3 + byte for byte in text.encode()]


def test_byte_tokens_join_to_characters_and_spaces_stay(byte_fallback: Tokenizer) -> None:
    ids = [
        *word_ids(byte_fallback, "▁hello", "▁"),
        *byte_token_ids("🎉č"),
        *word_ids(byte_fallback, "▁world", "日", "!"),
    ]
    pieces = run(byte_fallback.detokenizer(word_ids(byte_fallback, "a")), ids)
    assert pieces == [" hello", " ", "", "", "", "", "", "", "🎉č world", "日", "!", ""]


def test_run_of_byte_tokens_at_the_end_is_flushed(byte_fallback: Tokenizer) -> None:
    # DET-07
    prompt = word_ids(byte_fallback, "a")
    assert run(byte_fallback.detokenizer(prompt), byte_token_ids("🎉"))[-1] == "🎉"
    assert run(byte_fallback.detokenizer(prompt), byte_token_ids("🎉")[:3])[-1] == "\ufffd" * 3


def test_byte_token_half_characters_of_a_prompt_are_continued(byte_fallback: Tokenizer) -> None:
    # DET-02
    emoji = byte_token_ids("🎉")
    word = word_ids(byte_fallback, "▁hello")
    for border in (1, 2, 3):
        continued = run(byte_fallback.detokenizer(emoji[:border]), [*emoji[border:], *word])
        assert "".join(continued) == "🎉 hello"
        dropped = run(byte_fallback.detokenizer(emoji[:border]), word)
        assert "".join(dropped) == " hello"
