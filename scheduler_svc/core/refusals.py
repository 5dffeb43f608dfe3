"""Why the core says no, with the facts. Knows nothing of messages: the engine maps them.

Refused
├── InvalidField       a field is out of range
├── BadGrammar         the form of the outputs is wrong, or too much to compile
├── PromptTooLong      no room for one token
├── QueueFull          by requests or tokens; retry later
├── TenantLimit        the tenant has too many live requests
├── Draining           the replica takes nothing new
├── NoWorkers          nobody to compute it
├── DeadlineTooClose   the first token cannot come in time
├── BodyDiffers        the id is known with another body
└── UnknownRequest     the id is not known in this tenant
"""


class Refused(Exception):
    """A request was refused; nothing was kept. The text is one sentence with the facts."""


class InvalidField(Refused):
    """A field of a request is out of range."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


class BadGrammar(Refused):
    """The form of the outputs is wrong, or takes too much to compile."""


class PromptTooLong(Refused):
    """The prompt leaves no room for one token."""

    def __init__(self, *, num_tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {num_tokens} tokens, at most {limit} leave room for one more"
        )
        self.num_tokens = num_tokens
        self.limit = limit


class QueueFull(Refused):
    """Too much waits already."""

    def __init__(self, *, what: str, waiting: int, limit: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} {what} wait already, at most {limit} may")
        self.what = what  # "requests" or "prompt tokens"
        self.waiting = waiting
        self.limit = limit
        self.retry_after_s = retry_after_s


class TenantLimit(Refused):
    """The tenant has as many live requests as it may."""

    def __init__(self, *, tenant: str, limit: int, retry_after_s: float) -> None:
        super().__init__(f"tenant {tenant!r} has {limit} live requests, the most allowed")
        self.tenant = tenant
        self.limit = limit
        self.retry_after_s = retry_after_s


class Draining(Refused):
    """The replica is draining."""

    def __init__(self) -> None:
        super().__init__("the replica is draining and takes no new requests")


class NoWorkers(Refused):
    """No workers are there to compute it."""

    def __init__(self) -> None:
        super().__init__("no workers are available")


class DeadlineTooClose(Refused):
    """The first token cannot come before the deadline."""

    def __init__(self, *, needed_s: float, left_s: float) -> None:
        super().__init__(
            f"the first token is expected in {needed_s:.3f} s, the deadline is in {left_s:.3f} s"
        )
        self.needed_s = needed_s
        self.left_s = left_s


class BodyDiffers(Refused):
    """The id belongs to a request with another body."""

    def __init__(self, *, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is known with another body")
        self.request_id = request_id


class UnknownRequest(Refused):
    """The tenant has no such request."""

    def __init__(self, *, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is not known")
        self.request_id = request_id
