"""Traces come from their seed, and survive a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.simulator import traces
from bench.simulator.jobs import Conversation
from bench.simulator.trace_file import BadTrace, read_trace, write_trace


def keys_of(trace: list[Conversation]) -> set[int]:
    return {
        segment.key
        for conversation in trace
        for turn in conversation.turns
        for segment in (*turn.message, turn.answer)
    }


def test_equal_seeds_make_equal_traces_and_others_share_no_text() -> None:
    first, again, other = (traces.chat(rate=5.0, seconds=20.0, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert not keys_of(first) & keys_of(other)


def test_poisson_arrivals_come_at_their_rate_with_the_quoted_lengths() -> None:
    trace = traces.poisson(rate=50.0, seconds=100.0, seed=1)
    assert 4700 < len(trace) < 5300
    lengths = [conversation.turns[0].answer.num_tokens for conversation in trace]
    assert (min(lengths), max(lengths)) == (100, 1024)


def test_a_turn_brings_everything_said_before() -> None:
    trace = traces.chat(rate=5.0, seconds=20.0, seed=1)
    longest = max(trace, key=lambda conversation: len(conversation.turns))
    first, second = longest.prompt(0), longest.prompt(1)
    assert second[: len(first)] == first
    assert second[len(first)] == longest.turns[0].answer


def test_conversations_of_an_app_begin_with_the_same_instructions() -> None:
    trace = traces.chat(rate=50.0, seconds=20.0, seed=1, num_apps=3)
    assert len({conversation.prompt(0)[0] for conversation in trace}) == 3


def test_a_burst_arrives_at_once() -> None:
    trace = traces.bursts(rate=1.0, burst=10, every_s=4.0, seconds=9.0, seed=1)
    moments = [conversation.start_s for conversation in trace]
    assert moments == sorted(moments)
    assert (moments.count(4.0), moments.count(8.0)) == (10, 10)


def test_a_trace_read_from_a_file_is_the_one_written(tmp_path: Path) -> None:
    trace = traces.merged(
        traces.chat(rate=2.0, seconds=10.0, seed=1),
        traces.poisson(rate=2.0, seconds=10.0, seed=2, tenant="b", priority=3),
    )
    write_trace(trace, tmp_path / "trace.jsonl")
    assert read_trace(tmp_path / "trace.jsonl") == trace


def conversation_line(turns: list[dict[str, Any]]) -> str:
    whole = [{"is_length_known": True} | turn for turn in turns]
    return json.dumps({"start_s": 0, "tenant": "a", "priority": 0, "turns": whole})


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "{}",
        conversation_line([]),
        conversation_line([{"message": [[1, 0]], "answer": [2, 5], "think_s": 0}]),
        conversation_line([{"message": [], "answer": [2, 5], "think_s": 0}]),
    ],
)
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(traces.poisson(rate=2.0, seconds=2.0, seed=1), path)
    num_good = len(path.read_text().splitlines())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadTrace, match=rf"trace\.jsonl, line {num_good + 1}:"):
        read_trace(path)


def test_a_seed_without_text_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be from 0 to 4095, got 4096"):
        traces.poisson(rate=1.0, seconds=1.0, seed=4096)
