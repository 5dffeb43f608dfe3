"""The function calls of one output, joined from their deltas. Receives nothing."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.results import ToolCall, ToolCallDelta


class JoinedCalls:
    """What is known of the calls so far."""

    def __init__(self) -> None:
        self._calls: dict[int, ToolCall] = {}

    def add(self, deltas: Iterable[ToolCallDelta]) -> None:
        """Takes news; a call's id and name come first."""
        for delta in deltas:
            known = self._calls.get(delta.index, ToolCall(id="", name="", arguments_json=""))
            self._calls[delta.index] = ToolCall(
                id=known.id or delta.id,
                name=known.name or delta.name,
                arguments_json=known.arguments_json + delta.arguments_json,
            )

    def whole(self) -> tuple[ToolCall, ...]:
        """The calls, in their order."""
        return tuple(self._calls[index] for index in sorted(self._calls))
