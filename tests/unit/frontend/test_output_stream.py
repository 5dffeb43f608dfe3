"""An output's deltas: the same text however tokens arrive, and wherever a stream goes on."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.generations import splitter_for
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.output_record import OutputRecord
from scheduler_svc.frontend.output_stream import OutputStream
from scheduler_svc.frontend.request import TextRules
from scheduler_svc.frontend.text.stops import StopMatcher
from scheduler_svc.frontend.text.text_stream import TextStream
from scheduler_svc.frontend.told_tokens import RecordReader
from tests.fakes.byte_tokenizer import END_ID, NUM_IDS, byte_tokenizer

BYTES = byte_tokenizer()

# Few letters, so that stop strings are met; bytes of half characters; ids without a text.
IDS = st.one_of(st.sampled_from([64, 65, 66, 67]), st.integers(0, NUM_IDS + 5))
CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
# Marks and calls, whole and in part, a byte a token.
MARKED = st.lists(
    st.sampled_from(
        ["<think>", "</think>", CALL, "<tool_call>", '{"name"', "</tool_call>", "<", "ab", "\n"]
    ),
    max_size=5,
).map("".join)
STOPS = st.lists(st.text("abcd€", min_size=1, max_size=4), max_size=3)
REASONS = st.sampled_from(
    [engine.END_REASON_LENGTH, engine.END_REASON_EOS, engine.END_REASON_CANCELLED]
)


Content = tuple[str, str, tuple[bytes, ...]]


class Joined:
    """An output as a client joins it."""

    def __init__(self, *, num_received: int = 0) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[api.ToolCallDelta] = []
        self.ids: list[int] = []
        self.finish: api.Finish | None = None
        self.parts: list[tuple[int, Content]] = [(num_received, self.content)]
        self._num_received = num_received

    @property
    def content(self) -> Content:
        """All that was said, to be compared."""
        return self.text, self.reasoning, tuple(call.SerializeToString() for call in self.calls)

    def add(self, delta: api.OutputDelta) -> None:
        assert self.finish is None
        assert delta.first_token_index == self._num_received + len(self.ids)
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.calls += delta.tool_calls
        self.ids += delta.token_ids
        assert [(one.token_id, one.rank) for one in delta.logprobs] == [
            (token, token + 1) for token in delta.token_ids
        ]
        self.parts.append((delta.first_token_index + len(delta.token_ids), self.content))
        if delta.HasField("finish"):
            self.finish = delta.finish


def run(
    model: ServedModel,
    rules: TextRules,
    tokens: list[int],
    reason: engine.EndReason.ValueType,
    *,
    splits: list[int],
    num_received: int = 0,
) -> Joined:
    """Lets tokens arrive in pieces, the end behind the last one."""
    record = OutputRecord()
    text = TextStream(
        model.tokenizer.detokenizer([], skip_special_tokens=rules.skip_special_tokens),
        StopMatcher(rules.stop_strings, include_stop=rules.include_stop),
        splitter=splitter_for(rules),
        min_tokens=rules.min_tokens,
        num_delivered_tokens=num_received,
    )
    stream = OutputStream(
        0,
        record,
        text,
        rules,
        request_id="r",
        num_delivered=num_received,
        reader=RecordReader(num_top=0),
    )
    joined = Joined(num_received=num_received)

    def look() -> None:
        delta = stream.advance()
        if delta is not None:
            joined.add(delta)

    for begin, end in zip([0, *splits], [*splits, len(tokens)], strict=True):
        told = b"".join(struct.pack("<fi", -1.0, token + 1) for token in tokens[begin:end])
        record.take(begin, tokens[begin:end], told)
        look()
    record.note_end(
        engine.OutputEnd(
            num_tokens=len(tokens),
            reason=reason,
            stop_token_id=tokens[-1] if reason == engine.END_REASON_EOS else -1,
        )
    )
    look()
    assert stream.is_over
    assert stream.finish is not None
    assert joined.finish is not None
    assert stream.finish.num_tokens == joined.finish.num_tokens == num_received + len(joined.ids)
    return joined


@st.composite
def outputs(draw: st.DrawFn) -> tuple[TextRules, list[int], engine.EndReason.ValueType]:
    tokens = draw(st.lists(IDS.filter(lambda i: i != END_ID), min_size=1, max_size=30))
    is_split = draw(st.booleans())
    if is_split:
        encoded = BYTES.encode(draw(MARKED), add_special_tokens=False).ids
        tokens = [*encoded, *draw(st.sampled_from([[], tokens[:3]]))] or tokens
    reason = draw(REASONS)
    if reason == engine.END_REASON_EOS:
        tokens.append(END_ID)
    rules = TextRules(
        stop_strings=tuple(draw(STOPS)),
        include_stop=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        # an end token is never chosen within these
        min_tokens=draw(st.integers(0, min(3, len(tokens) - 1))),
        end_token_ids=frozenset({END_ID}),
        stream_interval=draw(st.sampled_from([1, 1, 3])),
        split_reasoning=is_split and draw(st.booleans()),
        parse_tool_calls=is_split and draw(st.booleans()),
        starts_in_reasoning=draw(st.booleans()),
    )
    return rules, tokens, reason


@given(output=outputs(), data=st.data())
def test_text_does_not_depend_on_how_tokens_arrive(
    model: ServedModel,
    output: tuple[TextRules, list[int], engine.EndReason.ValueType],
    data: st.DataObject,
) -> None:
    rules, tokens, reason = output
    points = data.draw(st.lists(st.integers(0, len(tokens)), max_size=8))
    whole = run(model, rules, tokens, reason, splits=[])
    pieces = run(model, rules, tokens, reason, splits=sorted(points))
    single = run(model, rules, tokens, reason, splits=list(range(1, len(tokens))))
    for other in (pieces, single):
        assert (other.content, other.ids, other.finish) == (whole.content, whole.ids, whole.finish)
    assert whole.ids == tokens[: len(whole.ids)]


@given(output=outputs(), data=st.data())
def test_a_stream_that_goes_on_makes_the_same_whole(
    model: ServedModel,
    output: tuple[TextRules, list[int], engine.EndReason.ValueType],
    data: st.DataObject,
) -> None:
    rules, tokens, reason = output
    first = run(model, rules, tokens, reason, splits=list(range(1, len(tokens))))
    num_received, received = data.draw(st.sampled_from(first.parts))
    points = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    rest = run(model, rules, tokens, reason, splits=points, num_received=num_received)
    text, reasoning, calls = received
    assert text + rest.text == first.text
    assert reasoning + rest.reasoning == first.reasoning
    assert calls + rest.content[2] == first.content[2]
    assert first.ids[:num_received] + rest.ids == first.ids
    assert rest.finish == first.finish


def test_an_end_waits_for_all_tokens_before_it(model: ServedModel) -> None:
    rules = TextRules(
        stop_strings=(),
        include_stop=False,
        skip_special_tokens=True,
        min_tokens=0,
        end_token_ids=frozenset(),
        stream_interval=1,
    )
    record = OutputRecord()
    text = TextStream(model.tokenizer.detokenizer([]), StopMatcher(()))
    stream = OutputStream(0, record, text, rules, request_id="r", num_delivered=0)
    record.note_end(engine.OutputEnd(num_tokens=2, reason=engine.END_REASON_LENGTH))
    record.take_one(0, 64)
    first = stream.advance()
    assert first is not None
    assert not first.HasField("finish")
    record.take_one(1, 65)
    second = stream.advance()
    assert second is not None
    assert second.finish.num_tokens == 2
