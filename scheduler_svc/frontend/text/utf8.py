"""Where a byte string ends inside a character. Knows nothing of tokens.

The byte ranges are those of table 3-7 of the Unicode standard (well-formed UTF-8).
"""

from __future__ import annotations

_SECOND_BYTE_RANGES = {
    0xE0: (0xA0, 0xBF),
    0xED: (0x80, 0x9F),
    0xF0: (0x90, 0xBF),
    0xF4: (0x80, 0x8F),
}
_CONTINUATION_RANGE = (0x80, 0xBF)
LONGEST_TAIL = 3


def unfinished_tail(data: bytes) -> bytes:
    """Return the longest end of `data` that more bytes may turn into one character, else b"".

    Such a tail, when it stays unfinished, decodes to exactly one U+FFFD.
    """
    for length in range(1, min(LONGEST_TAIL, len(data)) + 1):
        lead = data[-length]
        if lead & 0xC0 == 0x80:
            continue  # a continuation byte: its lead is further left
        tail = data[-length:]
        return tail if _sequence_length(lead) > length and _second_byte_fits(tail) else b""
    return b""


def _sequence_length(lead: int) -> int:
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    if 0xF0 <= lead <= 0xF4:
        return 4
    return 1  # ASCII, or a byte that never begins a character


def _second_byte_fits(tail: bytes) -> bool:
    if len(tail) < 2:
        return True
    low, high = _SECOND_BYTE_RANGES.get(tail[0], _CONTINUATION_RANGE)
    return low <= tail[1] <= high


def continues_character(tail: bytes, next_byte: int) -> bool:
    """Whether the byte goes on with the character that the unfinished `tail` began."""
    if not 0x80 <= next_byte <= 0xBF:
        return False
    return _second_byte_fits(tail + bytes((next_byte,)))
