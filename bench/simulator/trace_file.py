"""Traces as files, a conversation a line of JSON, so that any trace can be played again.

    {"start_s": 0.5, "tenant": "a", "priority": 0, "turns": [{"message": [[1, 300], [2, 40]],
     "answer": [3, 120], "think_s": 0.0, "is_length_known": false}]}

A segment is [key, tokens]; see `prompts`.
"""

import json
from pathlib import Path
from typing import Any

from bench.simulator.jobs import Conversation, Turn
from bench.simulator.prompts import Segment


class BadTrace(Exception):
    """A line is no conversation; the text names the file and the line."""


def write_trace(trace: list[Conversation], path: Path) -> None:
    """Writes a trace."""
    lines = (json.dumps(_encoded(conversation)) for conversation in trace)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def read_trace(path: Path) -> list[Conversation]:
    """Reads a trace; raises BadTrace."""
    trace = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                trace.append(_decoded(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise BadTrace(f"{path}, line {number}: {error!r}") from error
    return trace


def _encoded(conversation: Conversation) -> dict[str, Any]:
    return {
        "start_s": conversation.start_s,
        "tenant": conversation.tenant,
        "priority": conversation.priority,
        "turns": [
            {
                "message": [[each.key, each.num_tokens] for each in turn.message],
                "answer": [turn.answer.key, turn.answer.num_tokens],
                "think_s": turn.think_s,
                "is_length_known": turn.is_length_known,
            }
            for turn in conversation.turns
        ],
    }


def _decoded(fields: dict[str, Any]) -> Conversation:
    turns = tuple(
        Turn(
            message=tuple(_segment(each) for each in turn["message"]),
            answer=_segment(turn["answer"]),
            think_s=float(turn["think_s"]),
            is_length_known=bool(turn["is_length_known"]),
        )
        for turn in fields["turns"]
    )
    if not turns or not all(turn.message for turn in turns):
        raise ValueError("a conversation needs turns, and each of them a message")
    return Conversation(
        float(fields["start_s"]), turns, str(fields["tenant"]), int(fields["priority"])
    )


def _segment(pair: list[int]) -> Segment:
    key, num_tokens = pair
    if not (0 <= key < 2**32 and num_tokens >= 1):
        raise ValueError(f"a segment needs a 32-bit key and at least one token, got {pair}")
    return Segment(key, num_tokens)
