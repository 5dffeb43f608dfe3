"""What can go wrong between a user's call and a service's answer. Knows nothing of gRPC.

OctavoError
 +-- InvalidTarget             the address is not one that can be dialled
 +-- ClientClosed              the client was closed before the call
 +-- LocalServiceFailed        a service started by this process ended, or is not ready in time
 +-- MissingExtra              a part of Octavo that is not installed is needed
 +-- ServiceError              the service, or the way to it, refused or broke a call
      +-- InvalidRequest       INVALID_ARGUMENT, OUT_OF_RANGE: a field breaks a rule; see violations
      +-- Unauthenticated      UNAUTHENTICATED, PERMISSION_DENIED: no key, or the wrong one
      +-- NotFound             NOT_FOUND: no such request id, or no such model
      +-- AlreadyExists        ALREADY_EXISTS: the request id names another request
      +-- Overloaded           RESOURCE_EXHAUSTED: a queue or limit is full; see retry_after_s
      +-- Unavailable          UNAVAILABLE: nobody serves at this address now
      +-- DeadlineExceeded     DEADLINE_EXCEEDED: the timeout passed
      +-- Superseded           ABORTED: another stream attached to the same request
      +-- CallCancelled        CANCELLED: the call was cancelled
      +-- InternalError        any other status, and answers that break the contract
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.results import Generation


class OctavoError(Exception):
    """Anything that this package raises about a service; it can be copied and pickled."""

    def __reduce__(self) -> tuple[object, ...]:
        # the default calls the class with `args` alone, which lack what is named by keyword only
        return _bare, (type(self), self.args), self.__dict__


def _bare(kind: type[OctavoError], args: tuple[object, ...]) -> OctavoError:
    """An error whose attributes are still to come."""
    return kind.__new__(kind, *args)


class InvalidTarget(OctavoError, ValueError):
    """The address is not one that can be dialled."""


class ClientClosed(OctavoError):
    """The client was closed before the call."""


class MissingExtra(OctavoError):
    """A part of Octavo that is not installed is needed; the text says how to install it."""


class LocalServiceFailed(OctavoError):
    """A service started by this process ended by itself, or was not ready in time."""

    def __init__(
        self, message: str, *, exit_code: int | None = None, log_lines: Sequence[str] = ()
    ) -> None:
        self.exit_code = exit_code
        self.log_lines = tuple(log_lines)
        log = "".join(f"\n  {line}" for line in self.log_lines)
        super().__init__(f"{message}. Its last log lines:{log}" if log else message)


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that breaks a rule."""

    field: str
    description: str


class ServiceError(OctavoError):
    """A call that ended with a status other than OK.

    `code` is the gRPC status by name, `reason` the service's own word for it (may be empty).
    `is_resumable`: the generation lives on, or may do so: `attach(request_id, ...)` can go on.
    `is_retryable`: the same call may succeed later, after `retry_after_s` if that is given. The
    client has already tried again as often as its RetryPolicy and its ReconnectPolicy say.
    `received` is what a generation had brought when it failed; None for any other call.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        reason: str = "",
        request_id: str = "",
        is_resumable: bool = False,
        is_retryable: bool = False,
        retry_after_s: float | None = None,
        violations: Sequence[Violation] = (),
    ) -> None:
        self.message = message
        self.code = code
        self.reason = reason
        self.request_id = request_id
        self.is_resumable = is_resumable
        self.is_retryable = is_retryable
        self.retry_after_s = retry_after_s
        self.violations = tuple(violations)
        self.received: Generation | None = None
        super().__init__(message)

    def __str__(self) -> str:
        """The message, and every violation that it does not name already."""
        lines = [f"{violation.field}: {violation.description}" for violation in self.violations]
        unsaid = [line for line in lines if line not in self.message]
        return "\n  ".join([self.message or self.code, *unsaid])


class InvalidRequest(ServiceError):
    """The request breaks a rule."""


class Unauthenticated(ServiceError):
    """The service wants another key."""


class NotFound(ServiceError):
    """The service knows no such request id, or serves no such model."""


class AlreadyExists(ServiceError):
    """The request id already names another request."""


class Overloaded(ServiceError):
    """A queue or limit is full."""


class Unavailable(ServiceError):
    """Nobody serves at this address now."""


class DeadlineExceeded(ServiceError):
    """The timeout passed."""


class Superseded(ServiceError):
    """Another stream attached to the same request."""


class CallCancelled(ServiceError):
    """The call was cancelled."""


class InternalError(ServiceError):
    """The service failed, or its answer breaks the contract."""


def invalid_field(field: str, description: str) -> InvalidRequest:
    """A request that is refused before it is sent."""
    return InvalidRequest(
        f"{field}: {description}",
        code="INVALID_ARGUMENT",
        violations=(Violation(field, description),),
    )
