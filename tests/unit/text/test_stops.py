"""Stop strings are found at the earliest end, across any pieces; no more is held than needed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.stop_automaton import StopAutomaton
from scheduler_svc.frontend.text.stops import StopMatch, StopMatcher

# A small alphabet, so that random strings overlap, nest and repeat.
texts = st.text(alphabet="ab\nč", max_size=40)
stop_sets = st.lists(st.text(alphabet="ab\nč", min_size=1, max_size=6), min_size=1, max_size=6)


def naive_match(text: str, stop_strings: list[str]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        here = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if here:
            longest = max(here, key=len)
            return StopMatch(stop_string=longest, begin=end - len(longest), end=end)
    return None


def naive_num_held(text: str, stop_strings: list[str]) -> int:
    for begin in range(len(text)):
        end = text[begin:]
        if any(stop.startswith(end) and stop != end for stop in stop_strings):
            return len(end)
    return 0


@given(texts, stop_sets, st.lists(st.integers(0, 40)))
def test_match_is_the_earliest_whatever_the_pieces(
    text: str, stop_strings: list[str], borders: list[int]
) -> None:
    matcher = StopMatcher(stop_strings)
    found = None
    cuts = sorted({0, len(text), *(border for border in borders if border < len(text))})
    for begin, end in pairwise(cuts):
        found = matcher.read(text[begin:end])
        if found:
            break
    assert found == naive_match(text, stop_strings)


@given(texts, stop_sets)
def test_exactly_the_possible_beginning_of_a_stop_is_held(
    text: str, stop_strings: list[str]
) -> None:
    matcher = StopMatcher(stop_strings)
    for index, character in enumerate(text):
        if matcher.read(character):
            return
        so_far = text[: index + 1]
        assert matcher.num_safe == len(so_far) - naive_num_held(so_far, stop_strings)


@given(texts, stop_sets, st.integers(0, 40))
def test_matches_before_the_border_are_passed_over(
    text: str, stop_strings: list[str], border: int
) -> None:
    matcher = StopMatcher(stop_strings)
    assert matcher.read(text[:border], may_stop=False) is None
    found = matcher.read(text[border:])
    late = [
        (end, max((stop for stop in stop_strings if text[:end].endswith(stop)), key=len))
        for end in range(border + 1, len(text) + 1)
        if any(text[:end].endswith(stop) for stop in stop_strings)
    ]
    assert (found and (found.end, found.stop_string)) == (late[0] if late else None)


@pytest.mark.parametrize(
    ("stop", "text", "visible"),
    [
        (" any", "is there any", "is there"),
        ("\n\n", "one\n\ntwo", "one"),
        ("\u3002", "好\u3002再", "好"),
        ("five", "one two three four five six", "one two three four "),
        ("</think>", "a</thin</think>b", "a</thin"),
    ],
)
def test_stop_strings_of_the_field_match_across_single_characters(
    stop: str, text: str, visible: str
) -> None:
    # STP-03, STP-08
    matcher = StopMatcher([stop])
    matches = [match for match in map(matcher.read, text) if match]
    assert text[: matcher.cut(matches[0])] == visible


def test_included_stop_string_stays_visible() -> None:
    matcher = StopMatcher(["ab"], include_stop=True)
    match = matcher.read("xxaby")
    assert match == StopMatch(stop_string="ab", begin=2, end=4)
    assert match is not None
    assert matcher.cut(match) == 4


def test_no_stop_strings_hold_nothing() -> None:
    matcher = StopMatcher([])
    assert matcher.read("anything") is None
    assert matcher.num_safe == 8


@pytest.mark.parametrize("strings", [[""], ["a", ""]])
def test_empty_stop_string_is_refused(strings: list[str]) -> None:
    # STP-08
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(strings)


def test_megabyte_stop_string_holds_what_looks_like_it_and_lets_go_again() -> None:
    # STP-08
    stop = "abcdefghij" * 100_000
    matcher = StopMatcher([stop])
    assert matcher.read("xyz" + stop[:5000]) is None
    assert matcher.num_safe == 3
    assert matcher.read("abX") is None
    assert matcher.num_safe == 5006


def test_a_thousand_stop_strings_cost_states_only_where_the_text_goes() -> None:
    # STP-08
    strings = [f"stop number {index}: " + "x" * 4000 for index in range(1000)]
    automaton = StopAutomaton(strings)
    state = automaton.root
    for character in "a text that says stop number 77: xxx":
        state = automaton.advance(state, character)
    assert state.num_held == len("stop number 77: xxx")
    assert count_states(automaton) < 100


def count_states(automaton: StopAutomaton) -> int:
    waiting = [automaton.root]
    count = 0
    while waiting:
        count += 1
        waiting += [child for child in waiting.pop().children.values() if child]
    return count


def test_nested_beginnings_a_thousand_deep_are_followed() -> None:
    strings = ["a" * count + "b" for count in range(1, 1200)]
    matcher = StopMatcher(strings)
    assert matcher.read("a" * 5000) is None
    assert matcher.num_safe == 5000 - 1199
    match = matcher.read("b")
    assert match == StopMatch(stop_string="a" * 1199 + "b", begin=5000 - 1199, end=5001)
