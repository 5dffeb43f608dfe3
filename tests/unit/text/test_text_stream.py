"""Deltas join to one text that depends on the tokens alone, with ids released beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.detokenizer import ByteLevelDetokenizer
from scheduler_svc.frontend.text.stops import StopMatcher
from scheduler_svc.frontend.text.text_stream import StopHit, TextDelta, TextStream
from scheduler_svc.frontend.text.tokenizer import Tokenizer

# A vocabulary in which all borders are likely: inside characters, inside stop strings, no text.
PIECES: list[str | bytes] = [
    "a", "b", "ab", "ba", "\n", "xy", "é", "",
    b"\xc3", b"\xa9", b"\xf0\x9f", b"\x8e\x89", b"\xa9\xc3",
]  # fmt: skip
STOPS = ["ab", "ba\n", "éa", "xyab", "\ufffdb"]
ids_strategy = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)
stops_strategy = st.lists(st.sampled_from(STOPS), max_size=3)


@dataclass
class Received:
    """What a client that joins all deltas has."""

    text: str = ""
    num_tokens: int = 0
    stop: StopHit | None = None

    def add(self, delta: TextDelta) -> None:
        self.text += delta.text
        self.num_tokens += delta.num_released_tokens
        self.stop = delta.stop


def make_stream(
    stops: Sequence[str] = (),
    *,
    include_stop: bool = False,
    min_tokens: int = 0,
    num_delivered_tokens: int = 0,
) -> TextStream:
    return TextStream(
        ByteLevelDetokenizer(PIECES, hidden_ids=frozenset(), prompt_tail=b""),
        StopMatcher(stops, include_stop=include_stop),
        min_tokens=min_tokens,
        num_delivered_tokens=num_delivered_tokens,
    )


def receive(
    stream: TextStream, ids: Sequence[int], *, at_a_time: int = 1, finish: bool = True
) -> Received:
    received = Received()
    for begin in range(0, len(ids), at_a_time):
        received.add(stream.push(ids[begin : begin + at_a_time]))
        if received.stop:
            return received
    if finish:
        received.add(stream.finish())
    return received


def decode(ids: Sequence[int]) -> str:
    pieces = [PIECES[token_id] for token_id in ids]
    data = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    return data.decode(errors="replace")


@given(ids_strategy, stops_strategy, st.integers(1, 5))
def test_joined_deltas_are_the_same_however_tokens_arrive(
    ids: list[int], stops: list[str], at_a_time: int
) -> None:
    one_by_one = receive(make_stream(stops), ids)
    assert receive(make_stream(stops), ids, at_a_time=at_a_time) == one_by_one
    assert receive(make_stream(stops), ids, at_a_time=len(ids) + 1) == one_by_one


@given(ids_strategy)
def test_without_a_stop_the_text_is_the_full_decode_and_all_tokens_are_released(
    ids: list[int],
) -> None:
    received = receive(make_stream(), ids)
    assert received == Received(text=decode(ids), num_tokens=len(ids))


@given(ids_strategy, stops_strategy)
def test_text_never_shrinks_and_a_match_cuts_it_before_the_stop(
    ids: list[int], stops: list[str]
) -> None:
    # STP-02, STP-03
    received = receive(make_stream(stops), ids)
    whole = decode(ids)
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    if not ends:
        assert received == Received(text=whole, num_tokens=len(ids))
    else:
        assert received.stop is not None
        assert whole.startswith(received.text + received.stop.stop_string)
        assert len(received.text + received.stop.stop_string) == min(ends)


@given(
    ids=ids_strategy,
    stops=stops_strategy,
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
    data=st.data(),
)
def test_replay_goes_on_exactly_behind_the_delivered_tokens(
    *, ids: list[int], stops: list[str], include: bool, min_tokens: int, data: st.DataObject
) -> None:
    def stream(num_delivered_tokens: int = 0) -> TextStream:
        return make_stream(
            stops,
            include_stop=include,
            min_tokens=min_tokens,
            num_delivered_tokens=num_delivered_tokens,
        )

    num_seen = data.draw(st.integers(0, len(ids)), label="tokens seen by the first stream")
    before = receive(stream(), ids[:num_seen], finish=False)
    if before.stop:
        return
    at_a_time = data.draw(st.integers(1, 20), label="tokens at a time in the replay")
    after = receive(stream(before.num_tokens), ids, at_a_time=at_a_time)
    whole = receive(stream(), ids)
    assert before.text + after.text == whole.text
    assert before.num_tokens + after.num_tokens == whole.num_tokens
    assert after.stop == whole.stop


@given(ids_strategy, stops_strategy)
def test_released_tokens_and_text_agree_at_every_moment(ids: list[int], stops: list[str]) -> None:
    # STP-05: n released tokens always come with the same text, the decode of n tokens and the
    # rest of a character that the last of them began
    stream = make_stream(stops)
    received = Received()
    for token_id in ids:
        received.add(stream.push([token_id]))
        if received.stop:
            assert received.num_tokens == received.stop.num_tokens
            return
        whole = decode(ids)
        released = decode(ids[: received.num_tokens])
        assert received.text == whole[: len(released)]


def test_token_with_half_a_character_waits_with_its_text() -> None:
    stream = make_stream()
    e_acute = PIECES.index(b"\xc3")
    assert stream.push([0, e_acute]) == TextDelta(text="a", num_released_tokens=1)
    assert stream.push([PIECES.index(b"\xa9")]) == TextDelta(text="é", num_released_tokens=2)


def test_token_that_may_begin_a_stop_waits_and_is_let_go_when_it_does_not() -> None:
    stream = make_stream(["xyab"])
    xy, a, b = PIECES.index("xy"), 0, 1
    assert stream.push([b, xy]) == TextDelta(text="b", num_released_tokens=1)
    assert stream.push([a]) == TextDelta(text="", num_released_tokens=0)
    assert stream.push([a]) == TextDelta(text="xyaa", num_released_tokens=3)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "b"), (True, "bxyab")])
def test_stop_cuts_inside_a_token_and_names_the_token_that_completed_it(
    *, include_stop: bool, text: str
) -> None:
    # STP-06
    stream = make_stream(["xyab"], include_stop=include_stop)
    ids = [1, PIECES.index("xy"), PIECES.index("ab"), PIECES.index("ba")]
    delta = stream.push(ids)
    assert delta == TextDelta(
        text=text, num_released_tokens=3, stop=StopHit(stop_string="xyab", num_tokens=3)
    )


def test_everything_after_a_stop_is_dropped() -> None:
    # STP-03
    stream = make_stream(["ab"])
    stop = StopHit(stop_string="ab", num_tokens=1)
    assert stream.push([PIECES.index("ab"), 0, 0]).stop == stop
    assert stream.push([0]) == TextDelta(text="", num_released_tokens=0, stop=stop)
    assert stream.finish() == TextDelta(text="", num_released_tokens=0, stop=stop)


def test_held_text_is_let_go_at_the_end() -> None:
    # DET-07
    stream = make_stream(["xyab"])
    assert stream.push([PIECES.index("xy")]).text == ""
    assert stream.push([PIECES.index(b"\xf0\x9f")]).text == ""
    assert stream.finish() == TextDelta(text="xy\ufffd", num_released_tokens=2)


def test_stop_completed_by_the_last_flush_counts() -> None:
    stream = make_stream(["a\ufffd"])
    assert stream.push([0, PIECES.index(b"\xf0\x9f")]) == TextDelta(text="", num_released_tokens=0)
    assert stream.finish() == TextDelta(
        text="", num_released_tokens=2, stop=StopHit(stop_string="a\ufffd", num_tokens=2)
    )


def test_silent_end_token_is_released_without_text_after_what_was_held() -> None:
    # DET-07, STP-06
    stream = make_stream(["xyab"])
    stream.push([PIECES.index("xy")])
    assert stream.finish(num_silent_tokens=1) == TextDelta(text="xy", num_released_tokens=2)


def test_replayed_silent_token_is_not_released_twice() -> None:
    stream = make_stream(num_delivered_tokens=2)
    assert stream.push([0]) == TextDelta(text="", num_released_tokens=0)
    assert stream.finish(num_silent_tokens=1) == TextDelta(text="", num_released_tokens=0)


def test_stop_string_within_min_tokens_does_not_count_and_one_across_its_border_does() -> None:
    ab, a, b = PIECES.index("ab"), 0, 1
    stream = make_stream(["ab"], min_tokens=2)
    assert stream.push([ab, a]).text == "ab"
    delta = stream.push([b])
    assert delta.stop == StopHit(stop_string="ab", num_tokens=3)
    assert delta.text == ""


@pytest.mark.parametrize("name", ["smollm2", "qwen3"])
def test_end_of_thinking_and_stop_words_split_over_real_tokens(
    name: str, request: pytest.FixtureRequest
) -> None:
    # STP-03, STP-05
    tokenizer: Tokenizer = request.getfixturevalue(name)
    text = "one two three four five six. <think>no</think> 你好🎉 konec"
    ids = tokenizer.encode(text, add_special_tokens=False)
    for stop in ("five", " three four", "</think> 你", "🎉 ko", "hink>no</t"):
        stream = TextStream(tokenizer.detokenizer([]), StopMatcher([stop]))
        received = receive(stream, ids)
        assert received.text == text[: text.index(stop)]
        assert received.stop is not None
        completed = tokenizer.decode(ids[: received.stop.num_tokens], skip_special_tokens=False)
        assert stop in completed
        one_less = tokenizer.decode(ids[: received.stop.num_tokens - 1], skip_special_tokens=False)
        assert stop not in one_less


@given(ids=st.lists(st.integers(0, 49_151), min_size=1, max_size=30), data=st.data())
def test_a_stop_cut_out_of_random_tokens_ends_them_at_its_first_end(
    smollm2: Tokenizer, ids: list[int], data: st.DataObject
) -> None:
    whole = smollm2.decode(ids, skip_special_tokens=False)
    begin = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stops = [whole[begin : begin + data.draw(st.integers(1, 12))] or "x", "never there"]
    detokenizer = smollm2.detokenizer([], skip_special_tokens=False)
    received = receive(TextStream(detokenizer, StopMatcher(stops)), ids)
    if stops[0] not in whole:
        assert received == Received(text=whole, num_tokens=len(ids))
        return
    assert received.text == whole[: whole.index(stops[0])]
    assert received.stop is not None
    assert received.stop.stop_string == stops[0]
    assert received.num_tokens == received.stop.num_tokens


@given(ids=st.lists(st.integers(0, 49_151), min_size=1, max_size=20), data=st.data())
def test_what_is_held_of_random_tokens_is_the_beginning_of_a_stop_or_half_a_character(
    smollm2: Tokenizer, ids: list[int], data: st.DataObject
) -> None:
    whole = smollm2.decode(ids, skip_special_tokens=False)
    place = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stop = whole[place : place + 6] + "\u2603"  # its beginning is there, its end never is
    detokenizer = smollm2.detokenizer([], skip_special_tokens=False)
    stream = TextStream(detokenizer, StopMatcher([stop]))
    shown, num_shown = "", 0
    for number, token_id in enumerate(ids, start=1):
        delta = stream.push([token_id])
        shown, num_shown = shown + delta.text, num_shown + delta.num_released_tokens
        assert whole.startswith(shown)
        if num_shown == number:
            continue
        # the first token that waits does so because of what its own text may become
        so_far = smollm2.decode(ids[:number], skip_special_tokens=False)
        one_more = smollm2.decode(ids[: num_shown + 1], skip_special_tokens=False)
        held = so_far[len(shown) :]
        reach = len(one_more) - len(shown)
        ends = [held[at:].rstrip("\ufffd") for at in range(reach)]
        assert any(end and stop.startswith(end) for end in ends) or one_more.endswith("\ufffd")
