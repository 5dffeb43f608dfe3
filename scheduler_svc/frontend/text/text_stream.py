"""One output's text as it grows: detokenizing, stop strings, and which tokens may be sent.

A token is released once all its text is certain: no half character, no possible beginning of a stop
string or of a mark, no call that is not whole. Text leaves with the token it belongs to, so the
text behind n released tokens depends on nothing but the output's tokens: whoever has n tokens has
exactly that text, and a replay of the same tokens can go on behind it. The one exception is the
delta through a stop: its text ends at the stop while its tokens reach to the one that completed it.
Knows nothing of requests or gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.frontend.text.answer_parts import AnswerPart, AnswerSplitter
from scheduler_svc.frontend.text.detokenizer import Detokenizer
from scheduler_svc.frontend.text.stops import StopMatch, StopMatcher
from scheduler_svc.frontend.text.tool_calls import ParsedCall


@dataclass(frozen=True, kw_only=True, slots=True)
class StopHit:
    """A stop string ended the output."""

    stop_string: str
    num_tokens: int  # of the output, up to and with the one that completed the stop string


class TextDelta(NamedTuple):
    """What may be sent now. Joined deltas make the output. One is made for nearly every token."""

    text: str
    num_released_tokens: int  # how many further tokens go with the text
    stop: StopHit | None = None
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()

    def joined(self, rest: TextDelta) -> TextDelta:
        """This and what followed it, as one."""
        return TextDelta(
            text=self.text + rest.text,
            num_released_tokens=self.num_released_tokens + rest.num_released_tokens,
            stop=rest.stop,
            reasoning=self.reasoning + rest.reasoning,
            calls=self.calls + rest.calls,
        )


class TextStream:
    """Takes an output's tokens in order and gives its deltas."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        matcher: StopMatcher,
        *,
        splitter: AnswerSplitter | None = None,
        min_tokens: int = 0,
        num_delivered_tokens: int = 0,
    ) -> None:
        """Start an output; deltas leave out the first `num_delivered_tokens` and their text.

        A stop string that is complete within the first `min_tokens` tokens does not count. With a
        splitter, what is not the answer's text goes apart; stop strings are looked for in all.
        """
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._splitter = splitter
        self._min_tokens = min_tokens
        self._num_delivered = num_delivered_tokens
        self._num_pushed = 0
        self._num_released = 0
        self._held_text = ""
        self._held_from = 0  # where, in characters of the output, the held text begins
        self._stop: StopHit | None = None

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Take the next tokens; those behind a stop are dropped."""
        if self._stop:
            return TextDelta(text="", num_released_tokens=0, stop=self._stop)
        for token_id in token_ids:
            self._num_pushed += 1
            match = self._read(self._detokenizer.push(token_id))
            if match:
                return self._end_at(match)
        num_safe = self._matcher.num_safe
        return self._release(up_to=self._settle(num_safe) if self._splitter else num_safe)

    def finish(self, *, num_silent_tokens: int = 0) -> TextDelta:
        """End the output at something else than a stop string, and let go of all that is held.

        The silent tokens follow those pushed and have no text: an end token or stop id.
        """
        if self._stop:
            return TextDelta(text="", num_released_tokens=0, stop=self._stop)
        match = self._read(self._detokenizer.flush())
        if match:
            return self._end_at(match)
        end = self._held_from + len(self._held_text)
        self._num_pushed += num_silent_tokens
        self._detokenizer.ends.extend([end] * num_silent_tokens)
        self._settle(end)
        if self._splitter is not None:
            self._splitter.finish()
        return self._release(up_to=end)

    def _read(self, text: str) -> StopMatch | None:
        self._held_text += text
        return self._matcher.read(text, may_stop=self._num_pushed > self._min_tokens)

    def _settle(self, num_safe: int) -> int:
        """How many characters may go, of those that no stop string takes back."""
        if self._splitter is None:
            return num_safe
        num_read = self._splitter.num_read - self._held_from
        self._splitter.read(self._held_text[num_read : num_safe - self._held_from])
        return self._before_call(self._splitter, self._splitter.num_settled)

    def _before_call(self, splitter: AnswerSplitter, num_settled: int) -> int:
        """The last end of a token up to there: none of a call's tokens goes before the call."""
        last = self._held_from
        for end in self._detokenizer.ends:
            if end > num_settled:
                break
            if not splitter.is_inside_call(end):
                last = end
        return last

    def _release(self, *, up_to: int) -> TextDelta:
        ends = self._detokenizer.ends
        begin = end = self._held_from
        num_new = 0
        while ends and ends[0] <= up_to:
            end = ends.popleft()
            self._num_released += 1
            if self._num_released <= self._num_delivered:
                begin = end
            else:
                num_new += 1
        part = self._part(begin, end) if self._splitter else None
        text = self._held_text[begin - self._held_from : end - self._held_from]
        self._held_text = self._held_text[end - self._held_from :]
        self._held_from = end
        if part is None:
            return TextDelta(text=text, num_released_tokens=num_new)
        return TextDelta(
            text=part.text,
            num_released_tokens=num_new,
            reasoning=part.reasoning,
            calls=part.calls,
        )

    def _part(self, begin: int, end: int) -> AnswerPart:
        """What is between two settled places, where nothing before the first is wanted."""
        if self._splitter is None:
            text = self._held_text[begin - self._held_from : end - self._held_from]
            return AnswerPart(text=text)
        self._splitter.take(begin)
        return self._splitter.take(end)

    def _end_at(self, match: StopMatch) -> TextDelta:
        """Let go of the text before the stop, with all tokens up to the one just pushed."""
        num_tokens = self._num_pushed
        self._stop = StopHit(stop_string=match.stop_string, num_tokens=num_tokens)
        before = max(self._num_released, min(self._num_delivered, num_tokens))
        begin = self._held_from
        for _ in range(before - self._num_released):
            begin = self._detokenizer.ends.popleft()
        cut = self._matcher.cut(match)
        end = max(begin, cut) if before < num_tokens else begin
        self._settle(cut)
        if self._splitter is not None:
            self._splitter.finish()
        part = self._part(begin, end)
        self._held_text = ""
        return TextDelta(
            text=part.text,
            num_released_tokens=num_tokens - before,
            stop=self._stop,
            reasoning=part.reasoning,
            calls=part.calls,
        )
