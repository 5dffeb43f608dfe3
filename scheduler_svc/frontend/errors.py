"""How a call ends when it does not end well: one tree of errors, each with its gRPC status.

CallError
 +-- InvalidRequest    INVALID_ARGUMENT     fields break rules; carries all of them
 +-- Unauthenticated   UNAUTHENTICATED      no API key, or one that is not known
 +-- ModelUnknown      NOT_FOUND            another model is served here
 +-- RequestUnknown    NOT_FOUND            no such request, or another tenant's
 +-- BodyDiffers       ALREADY_EXISTS       the id is taken by another request
 +-- Overloaded        RESOURCE_EXHAUSTED   queue full, tenant limit; carries when to retry
 +-- SlowReader        RESOURCE_EXHAUSTED   the client left its stream unread; resumable
 +-- ReaderAhead       FAILED_PRECONDITION  the client has more tokens than are known; resumable
 +-- Unavailable       UNAVAILABLE          draining, no workers, no core; resumable
 +-- DeadlinePassed    DEADLINE_EXCEEDED    the caller's deadline
 +-- Superseded        ABORTED              another stream took the request; resumable
 +-- GenerationFailed  INTERNAL             all outputs failed, or a fault of ours

Knows nothing of streams or of the core.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc


@dataclass(frozen=True, slots=True)
class Violation:
    """A field that breaks a rule; `field` is a path such as generation.sampling.temperature."""

    field: str
    rule: str


class CallError(Exception):
    """A call ends with a status that is not OK. The text says what happened, with the facts."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"
    is_resumable = False
    retry_after_ms = 0
    comes_from_core = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(CallError):
    """Fields of the request break rules."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"

    def __init__(self, violations: Sequence[Violation]) -> None:
        assert violations
        super().__init__("; ".join(f"{one.field}: {one.rule}" for one in violations[:10]))
        self.violations = tuple(violations)


class Unauthenticated(CallError):
    """No API key came with the call, or one that is not known. The text never holds a key."""

    code = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ModelUnknown(CallError):
    """Another model is served here."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "MODEL_NOT_FOUND"

    def __init__(self, *, asked: str, served: str) -> None:
        super().__init__(f"model {asked[:200]!r} is not served here; {served!r} is")


class RequestUnknown(CallError):
    """The tenant has no such request."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "REQUEST_NOT_FOUND"


class BodyDiffers(CallError):
    """The request id belongs to a request with another body."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "BODY_DIFFERS"


class Overloaded(CallError):
    """There is too much to do already; nothing was kept."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, reason: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class SlowReader(CallError):
    """The client left its stream unread for too long."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "SLOW_READER"
    is_resumable = True

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(f"the stream was not read for {limit_s:g} s")


class ReaderAhead(CallError):
    """The client has more tokens of an output than the request has here."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "READER_AHEAD"
    is_resumable = True

    def __init__(self, *, output_index: int, num_received: int, num_known: int) -> None:
        super().__init__(
            f"from_tokens[{output_index}] is {num_received}, but the output has {num_known} tokens"
        )


class Unavailable(CallError):
    """The replica cannot serve this now; the same request may go on elsewhere or later."""

    code = grpc.StatusCode.UNAVAILABLE
    is_resumable = True

    def __init__(self, message: str, *, reason: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class DeadlinePassed(CallError):
    """The caller's deadline passed, or will before the first token."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE"


class Superseded(CallError):
    """Another stream owns the request now."""

    code = grpc.StatusCode.ABORTED
    reason = "SUPERSEDED"
    is_resumable = True


class GenerationFailed(CallError):
    """All outputs failed, or something of ours did."""

    code = grpc.StatusCode.INTERNAL
    reason = "GENERATION_FAILED"
