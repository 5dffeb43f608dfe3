"""One output on its way to the client: which tokens are next, and how it ends.

Reads what the core delivered, gives deltas. The core's end is provisional: a stop string in the
last tokens comes before it. Knows nothing of gRPC or of other outputs.
"""

from __future__ import annotations

import xxhash

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.finish_reasons import PUBLIC_REASON
from scheduler_svc.frontend.output_record import OutputRecord
from scheduler_svc.frontend.request import TextRules
from scheduler_svc.frontend.text.text_stream import StopHit, TextDelta, TextStream
from scheduler_svc.frontend.text.tool_calls import ParsedCall
from scheduler_svc.frontend.told_tokens import RecordReader

# Work between two turns of the event loop: about a millisecond.
_MAX_TOKENS_AT_ONCE = 1024
_ENDED_BY_TOKEN = (engine.END_REASON_EOS, engine.END_REASON_STOP_TOKEN)


class OutputStream:
    """Takes tokens from a record as they come and releases them with their text."""

    def __init__(
        self,
        index: int,
        record: OutputRecord,
        text: TextStream,
        rules: TextRules,
        *,
        request_id: str,
        num_delivered: int,
        reader: RecordReader | None = None,
    ) -> None:
        """`text` leaves out the first `num_delivered` tokens: the client has them.

        `reader` is for what is told of tokens; None where nothing is.
        """
        self._index = index
        self._record = record
        self._text = text
        self._rules = rules
        self._request_id = request_id
        self._reader = reader
        self._num_taken = 0
        self.num_sent = num_delivered
        self.finish: engine.Finish | None = None
        """Where and how the output ended, once it did."""

    @property
    def is_over(self) -> bool:
        """Whether its end was reached; `finish` says how."""
        return self.finish is not None

    @property
    def is_worth_a_look(self) -> bool:
        """Whether `advance` may have something to do."""
        if self.finish is not None:
            return False
        if not self._num_taken or self._known_end() is not None:
            return True
        return len(self._record.tokens) - self._num_taken >= self._rules.stream_interval

    @property
    def has_more(self) -> bool:
        """Whether `advance` stopped only to let others have their turn."""
        return self.is_worth_a_look and self._num_taken < self._num_ready()

    def advance(self) -> api.OutputDelta | None:
        """What can be sent now, at most some of it; None when that is nothing."""
        if not self.is_worth_a_look:
            return None
        num_ready = self._num_ready()
        upto = min(num_ready, self._num_taken + _MAX_TOKENS_AT_ONCE)
        news = self._text.push(self._record.tokens[self._num_taken : upto])
        self._num_taken = max(self._num_taken, upto)
        if news.stop is not None:
            return self._end_at_stop(news, news.stop)
        end = self._known_end()
        if end is not None and self._num_taken >= num_ready:
            return self._end(news, end)
        return self._delta(news) if news.num_released_tokens else None

    def _known_end(self) -> engine.OutputEnd | None:
        """The core's end, once all tokens before it are here."""
        end = self._record.end
        return end if end is not None and len(self._record.tokens) >= end.num_tokens else None

    def _num_ready(self) -> int:
        """How many tokens may be given to the text: not one that ends it without being in it."""
        end = self._known_end()
        if end is not None:
            return max(0, end.num_tokens - self._num_silent(end))
        tokens = self._record.tokens
        num_known = len(tokens)
        # The end that such a token brings may come in a later message.
        is_end = num_known > self._rules.min_tokens and tokens[-1] in self._rules.end_token_ids
        return num_known - is_end

    def _num_silent(self, end: engine.OutputEnd) -> int:
        return int(end.reason in _ENDED_BY_TOKEN and not self._rules.include_stop)

    def _end_at_stop(self, news: TextDelta, stop: StopHit) -> api.OutputDelta:
        self.finish = engine.Finish(
            output_index=self._index,
            num_tokens=stop.num_tokens,
            reason=engine.END_REASON_STOP_STRING,
            stop_string=stop.stop_string,
        )
        return self._delta(
            news,
            api.Finish(
                reason=api.FINISH_REASON_STOP_STRING,
                stop_string=stop.stop_string,
                num_tokens=stop.num_tokens,
            ),
        )

    def _end(self, news: TextDelta, end: engine.OutputEnd) -> api.OutputDelta | None:
        reason = PUBLIC_REASON.get(end.reason)
        if reason is not None:
            rest = self._text.finish(num_silent_tokens=self._num_silent(end))
            news = news.joined(rest)
            if rest.stop is not None:
                return self._end_at_stop(news, rest.stop)
        self.finish = engine.Finish(
            output_index=self._index, num_tokens=end.num_tokens, reason=end.reason
        )
        if reason is None:  # a status will follow; what is held goes with a resumed stream
            return self._delta(news) if news.num_released_tokens else None
        finish = api.Finish(reason=reason, num_tokens=end.num_tokens)
        if end.reason in _ENDED_BY_TOKEN:
            finish.stop_token_id = end.stop_token_id
        elif end.reason == engine.END_REASON_STOP_STRING:
            finish.stop_string = end.message
        else:
            finish.message = end.message
        return self._delta(news, finish)

    def _delta(self, news: TextDelta, finish: api.Finish | None = None) -> api.OutputDelta:
        first = self.num_sent
        self.num_sent += news.num_released_tokens
        tokens = self._record.tokens[first : self.num_sent]
        told = []
        if self._reader is not None:
            told = self._reader.read(tokens, self._record.records, first=first)
        return api.OutputDelta(
            index=self._index,
            first_token_index=first,
            text=news.text,
            token_ids=tokens,
            logprobs=told,
            finish=finish,
            reasoning=news.reasoning,
            tool_calls=[self._tool_call(call) for call in news.calls],
        )

    def _tool_call(self, call: ParsedCall) -> api.ToolCallDelta:
        """A whole call. Its id is the same wherever the stream goes on."""
        place = f"{self._request_id}/{self._index}/{call.index}".encode()
        return api.ToolCallDelta(
            index=call.index,
            id=f"call_{xxhash.xxh3_128_hexdigest(place)[:24]}",
            name=call.name,
            arguments_json=call.arguments_json,
        )
