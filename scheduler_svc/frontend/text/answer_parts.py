"""Tells apart what an answer consists of: its text, the model's reasoning, its calls of functions.

Takes the text piece by piece and holds back no more than what may be the beginning of a mark, and a
call until it is whole: one that turns out to be none comes out as text, with nothing lost. What is
said of a text depends on nothing but the text. Knows nothing of tokens, streams or stop strings.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from scheduler_svc.frontend.text.reasoning import CLOSE_MARK, OPEN_MARK
from scheduler_svc.frontend.text.tool_calls import CALL_MARK, CallReader, ParsedCall


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerPart:
    """Some of an answer; joined in order, parts make the whole."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()


class _Kind(Enum):
    TEXT = auto()
    REASONING = auto()
    MARK = auto()
    CALL = auto()


@dataclass(kw_only=True, slots=True)
class _Segment:
    """A stretch of the answer, by its place in characters from the beginning."""

    kind: _Kind
    begin: int
    end: int
    text: str = ""
    call: ParsedCall | None = None


class AnswerSplitter:
    """Reads one output's text and gives its parts."""

    def __init__(
        self, *, split_reasoning: bool, parse_tool_calls: bool, starts_in_reasoning: bool
    ) -> None:
        """Calls inside the reasoning are a part of it, whether that is split off or not."""
        self._splits_reasoning = split_reasoning
        marks = [OPEN_MARK, CALL_MARK] if parse_tool_calls else [OPEN_MARK]
        self._text_marks = _Marks(marks)
        self._close_mark = _Marks([CLOSE_MARK])
        self._is_in_reasoning = starts_in_reasoning
        self._call: CallReader | None = None
        self._num_calls = 0
        self._pending = ""
        self._segments: deque[_Segment] = deque()
        self.num_read = 0
        """Characters read so far."""

    @property
    def num_settled(self) -> int:
        """Characters of which it is certain what they are."""
        return self.num_read - len(self._pending)

    def read(self, text: str) -> None:
        """Takes the next piece of the answer."""
        self._pending += text
        self.num_read += len(text)
        while self._step():
            pass

    def finish(self) -> None:
        """The answer ends here: what is held back is what it looks like now."""
        if self._call is not None:
            call = self._call.read(self._pending).call_at_end()
            self._take_call(len(self._pending), call)
        self._take(_Kind.REASONING if self._is_in_reasoning else _Kind.TEXT, len(self._pending))

    def is_inside_call(self, position: int) -> bool:
        """Whether a settled position is between the first and the last character of a call."""
        return any(
            one.begin < position < one.end for one in self._segments if one.kind is _Kind.CALL
        )

    def take(self, up_to: int) -> AnswerPart:
        """What was not taken yet, up to a settled position; a call is there with its end."""
        text: list[str] = []
        reasoning: list[str] = []
        calls: list[ParsedCall] = []
        segments = self._segments
        while segments and segments[0].begin < up_to:
            segment = segments[0]
            if segment.end > up_to:
                if segment.call is not None:
                    break
                segment = _split_off(segment, up_to)
            else:
                segments.popleft()
            if segment.call is not None:
                calls.append(segment.call)
            elif segment.kind is _Kind.REASONING:
                reasoning.append(segment.text)
            elif segment.kind is _Kind.TEXT:
                text.append(segment.text)
        return AnswerPart(text="".join(text), reasoning="".join(reasoning), calls=tuple(calls))

    def _step(self) -> bool:
        """Settles some of the pending text; returns whether there may be more to settle."""
        if self._call is not None:
            return self._step_in_call(self._call)
        marks = self._close_mark if self._is_in_reasoning else self._text_marks
        kind = _Kind.REASONING if self._is_in_reasoning else _Kind.TEXT
        mark, begin = marks.find(self._pending)
        self._take(kind, begin)
        if mark == CALL_MARK:
            self._call = CallReader()
        elif mark:
            self._take(_Kind.MARK, len(mark))
            self._is_in_reasoning = mark == OPEN_MARK
        return bool(mark)

    def _step_in_call(self, reader: CallReader) -> bool:
        verdict = reader.read(self._pending)
        if verdict.length is None:
            return False
        self._take_call(verdict.length, verdict.call)
        return True

    def _take_call(self, length: int, call: ParsedCall | None) -> None:
        self._call = None
        if call is None:
            self._take(_Kind.TEXT, length)
            return
        begin = self.num_settled
        self._pending = self._pending[length:]
        numbered = call.numbered(self._num_calls)
        self._num_calls += 1
        self._segments.append(
            _Segment(kind=_Kind.CALL, begin=begin, end=begin + length, call=numbered)
        )

    def _take(self, kind: _Kind, length: int) -> None:
        if not length:
            return
        if not self._splits_reasoning:
            kind = _Kind.TEXT  # marks and reasoning stay where they are
        begin = self.num_settled
        text, self._pending = self._pending[:length], self._pending[length:]
        self._segments.append(_Segment(kind=kind, begin=begin, end=begin + length, text=text))


def _split_off(segment: _Segment, position: int) -> _Segment:
    """The segment's part before the position; the segment keeps the rest."""
    length = position - segment.begin
    first = _Segment(
        kind=segment.kind, begin=segment.begin, end=position, text=segment.text[:length]
    )
    segment.begin, segment.text = position, segment.text[length:]
    return first


class _Marks:
    """A few marks to look for at once."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._whole = re.compile("|".join(map(re.escape, marks)))
        beginnings = {mark[:length] for mark in marks for length in range(1, len(mark))}
        longest_first = sorted(beginnings, key=len, reverse=True)
        self._beginning = re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})\\Z")

    def find(self, text: str) -> tuple[str, int]:
        """The first mark and where it begins; "" and how much is certainly before any."""
        found = self._whole.search(text)
        if found:
            return found[0], found.start()
        held = self._beginning.search(text)
        return "", held.start() if held else len(text)
