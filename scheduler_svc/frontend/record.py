"""One request as its frontend mirrors it: what was submitted, and every token since.

The mirror is what lets a request live through a restart of the core, which then knows nothing.
Times are seconds on one monotonic clock. Knows nothing of sockets, text or gRPC.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Protocol

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.errors import CallError
from scheduler_svc.frontend.output_record import OutputRecord, TokensMissing
from scheduler_svc.frontend.told_tokens import WORD_BYTES, prompt_reader

_HARMLESS_AFTER_S = 5.0
"""A request with which a core lived this long is not what it died of."""


class Listener(Protocol):
    """Who is told that a record changed."""

    def wake(self) -> None:
        """Something came: tokens, an end, a failure."""


class Phase(enum.Enum):
    """Where a request stands between this frontend and the core."""

    UNANSWERED = enum.auto()  # submitted or asked for; neither accepted nor refused yet
    LIVE = enum.auto()  # accepted, and a stream reads it
    CLOSED = enum.auto()  # its stream ended; kept until that is settled and its time is over


class RequestRecord:
    """A request this frontend submitted or asked for. The ledger changes it, a stream reads it."""

    def __init__(
        self,
        submit: engine.Submit,
        *,
        now: float,
        deadline_at: float | None = None,
        is_attach: bool = False,
    ) -> None:
        """`submit` holds the body; times in it count from now. An attach knows only the name."""
        self.submit = submit
        self.is_attach = is_attach
        self.began_at = now
        self.deadline_at = deadline_at
        self.times_from = now
        self.phase = Phase.UNANSWERED
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outputs = [OutputRecord() for _ in range(submit.num_outputs)]
        self.form_field = ""
        """The field of the public request that its grammar came from."""
        self.prompt_records = bytearray()
        """What is told of the prompt's tokens, from the first one that is wanted."""
        self.max_tokens = 0
        self.num_cached_tokens: int | None = None
        self.queued_s: float | None = None
        """From its arrival to its first step; None before that."""
        self.num_core_restarts = 0
        """How many it lived through."""
        self.failure: CallError | None = None
        self.listener: Listener | None = None
        self.number = 0
        """On the present connection; 0 before it was ever sent."""
        self.is_owned = False
        """Whether the core confirmed the number on the present connection."""
        self.was_accepted = False
        self.closed_at = 0.0
        self.settles_at: float | None = None
        """Once closed: when what was last said of it has surely arrived; None: say it again."""
        self.detach: engine.Detach | None = None
        self._num_tokens_at_death = -1
        self._died_at = now

    @property
    def name(self) -> tuple[str, str]:
        """Tenant and request id."""
        return self.submit.tenant, self.submit.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens known of all outputs."""
        return sum(len(output.tokens) for output in self.outputs)

    @property
    def num_tokens_kept(self) -> int:
        """Tokens held in memory for it."""
        records = sum(len(output.records) for output in self.outputs) + len(self.prompt_records)
        return (len(self.submit.prompt_tokens) + records) // WORD_BYTES + self.num_tokens

    def adopt(self, attached: engine.Attached, *, now: float) -> None:
        """Takes over the request as the core holds it. Raises TokensDiffer."""
        if self.phase is Phase.UNANSWERED:
            self.submit = engine.Submit()
            self.submit.CopyFrom(attached.submit)
            self.times_from = now
        self.outputs += [OutputRecord() for _ in attached.outputs[len(self.outputs) :]]
        for output, known in zip(self.outputs, attached.outputs, strict=False):
            output.merge(known)
        if len(attached.prompt_records) > len(self.prompt_records):
            self.prompt_records[:] = attached.prompt_records
        if self.phase is Phase.UNANSWERED:
            self._num_tokens_at_death = self.num_tokens
        self.max_tokens = attached.max_tokens
        if attached.num_cached_tokens >= 0:
            self.num_cached_tokens = attached.num_cached_tokens

    def take_prompt_records(self, first_position: int, records: bytes) -> None:
        """Takes records of the prompt; known ones again do no harm. Raises TokensMissing."""
        reader = prompt_reader(self.submit)
        if reader is None:
            return
        begin = (first_position - self.submit.prompt_records_from) * reader.num_bytes
        if begin > len(self.prompt_records):
            raise TokensMissing(f"records of the prompt came from position {first_position} on")
        self.prompt_records += records[len(self.prompt_records) - begin :]

    def submission(self, number: int, *, now: float) -> engine.Submit:
        """The Submit as of now, with what was received since the first one."""
        passed_ms = int(1000 * (now - self.times_from))
        submit = engine.Submit()
        submit.CopyFrom(self.submit)
        submit.number = number
        submit.deadline_ms = self.deadline_ms(now)
        if submit.time_limit_ms:
            submit.time_limit_ms = max(1, submit.time_limit_ms - passed_ms)
        submit.age_ms += passed_ms
        submit.was_accepted = self.was_accepted
        if self.phase is Phase.CLOSED:
            submit.is_detached = True
            submit.keep_for_ms = max(1, int(1000 * (self.keep_until - now)))
        submit.prompt_records = bytes(self.prompt_records)
        if self.num_tokens or any(output.end or output.finish for output in self.outputs):
            del submit.resume[:]
            submit.resume.extend(output.as_resumed() for output in self.outputs)
        return submit

    def deadline_ms(self, now: float) -> int:
        """Milliseconds until the stream's deadline, 0 when it has none."""
        if self.deadline_at is None:
            return 0
        return max(1, int(1000 * (self.deadline_at - now)))

    def is_past_deadline(self, now: float) -> bool:
        """Whether the stream's deadline has passed, or does within a moment."""
        # the client's own timer may end the call just before ours would
        return self.deadline_at is not None and now >= self.deadline_at - 0.05

    @property
    def keep_until(self) -> float:
        """How long a closed request may be asked for again."""
        is_cancelled = self.detach is not None and self.detach.cancel
        if is_cancelled or not self.was_accepted:
            return self.closed_at
        return self.closed_at + self.submit.keep_for_ms / 1000

    @property
    def needs_settling(self) -> bool:
        """Whether a closed request would go wrong if the core missed how it was closed.

        One that is detached to be kept is what the core makes of a lost one by itself.
        """
        return self.detach is None or self.detach.cancel or not self.submit.keep_for_ms

    def note_core_death(self, now: float) -> None:
        """Counts a restart of the core; a token since the previous one starts the count anew.

        Who is not told of tokens goes by the time that the core lived.
        """
        self.num_core_restarts += 1
        num_tokens = self.num_tokens
        has_moved = num_tokens > self._num_tokens_at_death >= 0
        if has_moved or (self.phase is Phase.CLOSED and now - self._died_at > _HARMLESS_AFTER_S):
            self.submit.num_core_deaths = 0
        self._num_tokens_at_death, self._died_at = num_tokens, now
        self.submit.num_core_deaths += 1

    def fail(self, error: CallError) -> None:
        """Ends what waits for this request, whichever it is."""
        if not self.answered.done():
            self.answered.set_exception(error)
            return
        self.failure = error
        self.wake()

    def wake(self) -> None:
        """Tells the stream that something came."""
        if self.listener is not None:
            self.listener.wake()
