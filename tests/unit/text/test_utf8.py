"""Where bytes end inside a character, against Python's own decoder."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.utf8 import continues_character, unfinished_tail

# Bytes at the borders of every rule, so that short strings meet all of them.
BYTES = [
    0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
    0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF,
]  # fmt: skip
byte_strings = st.lists(st.sampled_from(BYTES), max_size=8).map(bytes)


@given(byte_strings, byte_strings)
def test_cutting_before_the_tail_changes_nothing_whatever_follows(
    data: bytes, following: bytes
) -> None:
    tail = unfinished_tail(data)
    head = data[: len(data) - len(tail)]
    whole = (data + following).decode(errors="replace")
    assert head.decode(errors="replace") + (tail + following).decode(errors="replace") == whole


@given(byte_strings)
def test_a_tail_can_be_completed_to_exactly_one_character(data: bytes) -> None:
    tail = unfinished_tail(data)
    if tail:
        assert tail.decode(errors="replace") == "\ufffd"
        completions = [
            tail + bytes(rest)
            for rest in ([0x80], [0xA0], [0x80] * 2, [0xA0, 0x80], [0x80] * 3, [0x90, 0x80, 0x80])
        ]
        assert any(is_one_character(data) for data in completions)


@given(byte_strings)
def test_text_that_is_whole_has_no_tail(data: bytes) -> None:
    assert unfinished_tail(data.decode(errors="replace").encode()) == b""


@given(st.text(min_size=1, max_size=3), st.integers(1, 3))
def test_a_character_cut_short_is_the_tail_and_its_next_byte_continues_it(
    text: str, num_bytes: int
) -> None:
    last = text[-1].encode()
    if num_bytes < len(last):
        cut = text[:-1].encode() + last[:num_bytes]
        assert unfinished_tail(cut) == last[:num_bytes]
        assert continues_character(last[:num_bytes], last[num_bytes])
        assert not continues_character(last[:num_bytes], ord("a"))


def test_a_byte_outside_the_second_byte_range_continues_nothing() -> None:
    assert not continues_character(b"\xe0", 0x80)
    assert not continues_character(b"\xed", 0xA0)
    assert not continues_character(b"\xf4", 0x90)
    assert continues_character(b"\xf4", 0x8F)
    assert continues_character(b"\xf0\x9f", 0x80)


def is_one_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False
