"""What is known of one call while it runs, for its status, its log line and the readings.

Holds no text of prompts or outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from scheduler_svc.frontend.generation_stream import GenerationStream
from scheduler_svc.frontend.pace import Pace
from scheduler_svc.frontend.span import CallSpan


@dataclass(slots=True, kw_only=True)
class Call:
    """One call in progress; its request id is told with any error. Times are on one clock."""

    method: str
    arrived_at: float
    request_id: str = ""
    is_continuation: bool = False  # of a stream that an earlier call began
    parsed_at: float | None = None  # once its prompt is tokens, and valid
    stream: GenerationStream | None = None  # once the request is accepted
    pace: Pace | None = None
    span: CallSpan | None = None  # when it is traced
    code: grpc.StatusCode = grpc.StatusCode.OK
    reason: str = ""

    def note_failure(self, code: grpc.StatusCode, reason: str) -> None:
        """The call ends with a status that is not OK."""
        self.code, self.reason = code, reason
