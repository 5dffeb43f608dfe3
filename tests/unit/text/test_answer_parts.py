"""Reasoning and calls are told from the text, whatever its pieces; only possible marks wait."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.answer_parts import AnswerPart, AnswerSplitter
from scheduler_svc.frontend.text.reasoning import leaves_reasoning_open, opens_reasoning
from scheduler_svc.frontend.text.tool_calls import ParsedCall, parse_call

ARGUMENTS = '{"a": "</tool_call> \\" {", "b": [1, 2]}'
CALL = f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>'
# Whole marks, calls and beginnings of them, so that all borders are likely.
FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "<to", "</t", ">", "think>", " ",
    "\n", "word", '"', "\\", "{", "}", '{"name": "f", "arguments": {}}', '{"name": "g"}', CALL,
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
SWITCHES = st.tuples(st.booleans(), st.booleans(), st.booleans())


def make(switches: tuple[bool, bool, bool] = (True, True, False)) -> AnswerSplitter:
    split, parse, starts = switches
    return AnswerSplitter(split_reasoning=split, parse_tool_calls=parse, starts_in_reasoning=starts)


def joined(parts: list[AnswerPart]) -> AnswerPart:
    return AnswerPart(
        text="".join(part.text for part in parts),
        reasoning="".join(part.reasoning for part in parts),
        calls=tuple(call for part in parts for call in part.calls),
    )


def read(
    text: str, *, switches: tuple[bool, bool, bool] = (True, True, False), cuts: Sequence[int] = ()
) -> AnswerPart:
    splitter, parts = make(switches), []
    borders = sorted({cut for cut in cuts if 0 < cut < len(text)})
    for begin, end in zip([0, *borders], [*borders, len(text)], strict=True):
        splitter.read(text[begin:end])
        parts.append(splitter.take(splitter.num_settled))
    splitter.finish()
    parts.append(splitter.take(splitter.num_settled))
    assert splitter.num_settled == len(text)
    return joined(parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain < text", AnswerPart(text="plain < text")),
        ("<think>\nhm\n</think>\n\nyes", AnswerPart(text="\n\nyes", reasoning="\nhm\n")),
        ("a<think>b</think>c<think>d", AnswerPart(text="ac", reasoning="bd")),
        ("stray </think> stays", AnswerPart(text="stray </think> stays")),
        ("<thin", AnswerPart(text="<thin")),
        ("<think>x</thin", AnswerPart(reasoning="x</thin")),
        (
            "<think><tool_call>{}</tool_call></think>",
            AnswerPart(reasoning="<tool_call>{}</tool_call>"),
        ),
        (
            f"Well:\n{CALL}!",
            AnswerPart(
                text="Well:\n!",
                calls=(
                    ParsedCall(name="f", arguments_json='{"a": "</tool_call> \\" {", "b": [1, 2]}'),
                ),
            ),
        ),
    ],
)
def test_an_answer_falls_into_its_parts(text: str, expected: AnswerPart) -> None:
    assert read(text) == expected
    assert read(text, cuts=list(range(len(text)))) == expected


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>no json</tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "extra": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "open\n}}\n</tool_call> and on',
        '<tool_call>{"name": "f", "arguments": {"x": "open',
        '<tool_call>{"name": "f", "argu',
        '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 5000 + "</tool_call>",
        "<tool_call></tool_call>",
    ],
)
def test_a_malformed_call_comes_out_as_text_with_nothing_lost(text: str) -> None:
    assert read(text) == AnswerPart(text=text)
    assert read(text, cuts=list(range(0, len(text), 7))) == AnswerPart(text=text)


def test_a_call_behind_a_malformed_one_is_found() -> None:
    part = read(f'<tool_call>{{"name": <tool_call><tool_call>{CALL}')
    assert part.text == '<tool_call>{"name": <tool_call><tool_call>'
    assert [call.name for call in part.calls] == ["f"]


def test_a_call_that_only_lacks_its_close_mark_at_the_end_counts() -> None:
    part = read('<tool_call>\n{"name": "f", "arguments": {}}\n')
    assert part == AnswerPart(calls=(ParsedCall(name="f", arguments_json="{}"),))


def test_calls_are_numbered_and_arguments_are_as_written() -> None:
    one = '<tool_call>{"arguments": {"b":1,  "a": 2e1}, "name": "ž"}</tool_call>'
    part = read(f"{one}\n{one}")
    assert part.text == "\n"
    assert [(call.index, call.name, call.arguments_json) for call in part.calls] == [
        (0, "ž", '{"b":1,  "a": 2e1}'),
        (1, "ž", '{"b":1,  "a": 2e1}'),
    ]


@given(TEXTS, SWITCHES, st.lists(st.integers(0, 200), max_size=30))
def test_parts_do_not_depend_on_the_pieces(
    text: str, switches: tuple[bool, bool, bool], cuts: list[int]
) -> None:
    whole = read(text, switches=switches)
    assert read(text, switches=switches, cuts=cuts) == whole
    assert read(text, switches=switches, cuts=list(range(len(text)))) == whole


@given(TEXTS, SWITCHES)
def test_without_marks_and_calls_nothing_is_missing(
    text: str, switches: tuple[bool, bool, bool]
) -> None:
    split, parse, _ = switches
    part = read(text, switches=switches)
    if not split and not parse:
        assert part == AnswerPart(text=text)
    if not split:
        assert not part.reasoning
    if not parse:
        assert not part.calls
        without_marks = [piece.replace("<think>", "") for piece in (text, part.text)]
        assert len(part.text) + len(part.reasoning) <= len(text)
        assert sum(map(len, (part.text, part.reasoning))) >= len(
            without_marks[0].replace("</think>", "")
        )


@given(TEXTS, SWITCHES)
def test_only_the_beginning_of_a_mark_is_held_outside_calls(
    text: str, switches: tuple[bool, bool, bool]
) -> None:
    splitter = make(switches)
    for index, character in enumerate(text):
        splitter.read(character)
        held = text[splitter.num_settled : index + 1]
        is_mark = any(mark.startswith(held) for mark in ("<think>", "</think>", "<tool_call>"))
        assert is_mark or held.startswith("<tool_call>")


@given(TEXTS, SWITCHES, st.data())
def test_what_follows_a_place_depends_on_the_text_before_it_alone(
    text: str, switches: tuple[bool, bool, bool], data: st.DataObject
) -> None:
    splitter = make(switches)
    splitter.read(text)
    places = [p for p in range(splitter.num_settled + 1) if not splitter.is_inside_call(p)]
    place = data.draw(st.sampled_from(places))
    first = splitter.take(place)
    rest = splitter.take(splitter.num_settled)
    again = make(switches)
    again.read(text[:place])
    again.read(text[place:])
    again.take(place)
    assert again.take(again.num_settled) == rest
    splitter.finish()
    last = splitter.take(len(text))
    assert joined([first, rest, last]) == read(text, switches=switches)


@given(
    st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.none())),
    st.text(min_size=1),
    st.integers(0, 3),
)
def test_every_call_in_json_is_parsed(arguments: dict[str, object], name: str, indent: int) -> None:
    body = json.dumps({"name": name, "arguments": arguments}, indent=indent or None)
    call = parse_call(body)
    assert call is not None
    assert call.name == name
    assert json.loads(call.arguments_json) == arguments
    assert call.arguments_json in body
    assert read(f"<tool_call>{body}</tool_call>").calls == (call,)


def test_a_prompt_opens_the_reasoning_only_at_its_very_end() -> None:
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_reasoning("what is <think> for?")
    assert leaves_reasoning_open("<think>so far")
    assert not leaves_reasoning_open("<think>so</think> far")
