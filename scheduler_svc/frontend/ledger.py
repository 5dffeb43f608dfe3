"""All requests of this frontend, and what the core has to be told of each.

The rules of docs/decisions/0001-contracts.md for owners: numbers of a connection, answers, and on
a new connection what is attached, submitted again, or repeated. Knows nothing of sockets, text or
gRPC. Every time is in seconds on the clock given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.deliver import apply_deliver
from scheduler_svc.frontend.errors import (
    CallError,
    GenerationFailed,
    InvalidRequest,
    Superseded,
    Violation,
)
from scheduler_svc.frontend.open_questions import OpenQuestions
from scheduler_svc.frontend.output_record import TokensDiffer
from scheduler_svc.frontend.owner_channel import OwnerChannel, Sender
from scheduler_svc.frontend.record import Phase, RequestRecord
from scheduler_svc.frontend.refusals import refusal

SETTLED_AFTER_S = 3.0
"""A message on a connection that lives on this long has arrived: a loss would have ended it."""
UNSETTLED_LIMIT_S = 60.0
"""Longer than any core keeps what nobody asks for: no use in saying it again."""


class RequestLedger:
    """Records from their submission until nothing about them can matter any more."""

    def __init__(self, *, clock: Callable[[], float], max_closed_tokens: int) -> None:
        """Closed requests are mirrored up to `max_closed_tokens` tokens, the oldest go first."""
        self._clock = clock
        self._max_closed_tokens = max_closed_tokens
        self._channel = OwnerChannel()
        self._core_incarnation: int | None = None
        self._records: dict[RequestRecord, None] = {}  # in the order they came
        self._closed_by_name: dict[tuple[str, str], RequestRecord] = {}
        self._cancels: OpenQuestions[engine.CancelByName, engine.CancelAnswer] = OpenQuestions()
        self._estimates: OpenQuestions[engine.Estimate, engine.EstimateAnswer] = OpenQuestions()

    # --- what streams want ---

    def submit(self, record: RequestRecord) -> None:
        """Asks the core to run a request, now or once it can be reached."""
        self._records[record] = None
        self._channel.submit(record, now=self._clock())

    def attach(self, record: RequestRecord) -> None:
        """Asks the core for a request by its name."""
        self._records[record] = None
        self._channel.attach(record, now=self._clock())

    def finish(self, record: RequestRecord, finish: engine.Finish) -> None:
        """Says where an output ended. `finish.number` is filled in."""
        output = record.outputs[finish.output_index]
        output.finish = finish
        if record.is_owned and not output.is_final:
            self._channel.finish(record, finish)

    def close(self, record: RequestRecord) -> None:
        """The stream gave its client the end of everything."""
        if record in self._records:
            self._close(record, detach=None)

    def detach(self, record: RequestRecord, *, cancel: bool) -> None:
        """The stream's client left; with `cancel` the request ends whatever it asked to be kept."""
        if record in self._records and record.phase is not Phase.CLOSED:
            self._close(record, detach=engine.Detach(cancel=cancel))

    def cancel(self, *, tenant: str, request_id: str) -> asyncio.Future[engine.CancelAnswer]:
        """Asks the core to end a request by name; the caller bounds its wait."""
        mirrored = self._closed_by_name.get((tenant, request_id))
        if mirrored is not None and mirrored.detach is not None:
            mirrored.detach.cancel = True  # no later core shall go on with it
        order = engine.CancelByName(tenant=tenant, request_id=request_id)
        answer = self._cancels.ask(order)
        self._channel.say(engine.FrontendToCore(cancel=order))
        return answer

    def estimate(self, question: engine.Estimate) -> asyncio.Future[engine.EstimateAnswer]:
        """Asks the core what a request would meet; the caller bounds its wait."""
        answer = self._estimates.ask(question)
        self._channel.say(engine.FrontendToCore(estimate=question))
        return answer

    # --- what the link tells ---

    def connected(self, connection: Sender, *, core_incarnation: int) -> None:
        """A core answered the Hello of a new connection: settles what is open."""
        is_new_core = self._core_incarnation not in (None, core_incarnation)
        self._core_incarnation = core_incarnation
        self._channel.open(connection)
        for record in list(self._records):
            self._recover(record, is_new_core=is_new_core)
        for order in self._cancels.unanswered():
            self._channel.say(engine.FrontendToCore(cancel=order))
        for question in self._estimates.unanswered():
            self._channel.say(engine.FrontendToCore(estimate=question))

    def disconnected(self) -> None:
        """The connection is over: its numbers mean nothing any more."""
        self._channel.close()
        now = self._clock()
        for record in self._records:
            record.is_owned = False
            if record.settles_at is not None and now < record.settles_at:
                record.settles_at = None

    def accepted(self, message: engine.Accepted) -> None:
        """A Submit was taken."""
        record = self._channel.records.get(message.number)
        if record is not None:
            record.max_tokens = message.max_tokens
            self._own(record, repeats_final=False)

    def attached(self, message: engine.Attached) -> None:
        """A request by this name was known, and is ours now."""
        record = self._channel.records.get(message.number)
        if record is None:
            return
        try:
            record.adopt(message, now=self._clock())
        except TokensDiffer as error:
            self._give_up(record, str(error))
            return
        self._own(record, repeats_final=True)
        record.wake()

    def rejected(self, message: engine.Rejected) -> None:
        """A Submit or an Attach was refused."""
        record = self._channel.records.get(message.number)
        if record is None:
            return
        if record.phase is Phase.LIVE and message.reason == engine.REJECT_REASON_NOT_FOUND:
            # forgotten while we were unseen: it goes on from here
            self._channel.submit(record, now=self._clock())
            return
        self._drop(record, refusal(message, form_field=record.form_field))

    def superseded(self, message: engine.Superseded) -> None:
        """Another stream took the request."""
        record = self._channel.records.get(message.number)
        if record is not None:
            self._drop(record, Superseded("another stream took the request"))

    def deliver(self, message: engine.Deliver) -> None:
        """Tokens and ends. Raises what `apply_deliver` raises."""
        for record in apply_deliver(message, self._channel.records):
            record.wake()

    def cancel_answered(self, message: engine.CancelAnswer) -> None:
        """The core looked for a request to end."""
        self._cancels.answered(message)

    def estimate_answered(self, message: engine.EstimateAnswer) -> None:
        """The core looked what a request would meet."""
        self._estimates.answered(message)

    # --- time ---

    def forget_closed(self) -> None:
        """Drops closed requests that are settled and no longer kept."""
        now = self._clock()
        num_tokens = 0
        for record in reversed(list(self._with_phase(Phase.CLOSED))):
            num_tokens += record.num_tokens_kept
            settles_at = record.settles_at or record.closed_at + UNSETTLED_LIMIT_S
            is_kept = now < record.keep_until and num_tokens <= self._max_closed_tokens
            if now >= settles_at and not is_kept:
                self._drop(record)

    def unanswered(self) -> Iterator[RequestRecord]:
        """Requests whose streams wait for the core's word."""
        return self._with_phase(Phase.UNANSWERED)

    def live(self) -> Iterator[RequestRecord]:
        """Requests with a stream."""
        return self._with_phase(Phase.LIVE)

    def fail(self, record: RequestRecord, error: CallError) -> None:
        """Gives a request up; the core will find that it has no owner."""
        self._drop(record, error)

    # --- inside ---

    def _with_phase(self, phase: Phase) -> Iterator[RequestRecord]:
        return (record for record in list(self._records) if record.phase is phase)

    def _recover(self, record: RequestRecord, *, is_new_core: bool) -> None:
        now = self._clock()
        if record.phase is Phase.CLOSED:
            self._recover_closed(record, is_new_core=is_new_core)
        elif record.phase is Phase.UNANSWERED and not record.is_attach:
            self._channel.submit(record, now=now)
        elif record.phase is Phase.LIVE and is_new_core:
            record.note_core_death(now)
            self._channel.submit(record, now=now)
        else:
            self._channel.attach(record, now=now)

    def _recover_closed(self, record: RequestRecord, *, is_new_core: bool) -> None:
        now = self._clock()
        if is_new_core and now >= record.keep_until:
            self._drop(record)
        elif is_new_core:
            record.note_core_death(now)
            self._channel.submit(record, now=now)
        elif record.settles_at is None and record.needs_settling:
            self._channel.attach(record, now=now)

    def _close(self, record: RequestRecord, *, detach: engine.Detach | None) -> None:
        now = self._clock()
        record.phase, record.closed_at, record.detach = Phase.CLOSED, now, detach
        record.listener = None
        if record.number == 0:
            self._drop(record)  # the core never heard of it
            return
        earlier = self._closed_by_name.get(record.name)
        if earlier is not None:
            self._drop(earlier)  # this one knows all that one did
        self._closed_by_name[record.name] = record
        if self._channel.has(record):
            record.settles_at = now + SETTLED_AFTER_S
            if detach is not None:
                self._channel.detach(record, detach)

    def _own(self, record: RequestRecord, *, repeats_final: bool) -> None:
        """The core confirmed our number: goes on, and repeats what it may not have heard."""
        record.is_owned = record.was_accepted = True
        earlier = self._closed_by_name.get(record.name)
        if earlier not in (None, record):
            self._drop(earlier)  # this one knows all that one did
        for output in record.outputs:
            if output.finish is not None and (repeats_final or not output.is_final):
                self._channel.finish(record, output.finish)
        if record.phase is Phase.UNANSWERED:
            record.phase = Phase.LIVE
            if not record.answered.done():
                record.answered.set_result(None)
        elif record.phase is Phase.CLOSED:
            record.settles_at = self._clock() + SETTLED_AFTER_S
            self._channel.detach(record, record.detach or engine.Detach())

    def _give_up(self, record: RequestRecord, why: str) -> None:
        """Leaves a request of which this frontend and the core know different things."""
        error: CallError = GenerationFailed(why)
        if record.phase is Phase.UNANSWERED:
            error = InvalidRequest([Violation(field="resume.outputs", rule=why)])
        self._channel.detach(record, engine.Detach())
        self._drop(record, error)

    def _drop(self, record: RequestRecord, error: CallError | None = None) -> None:
        self._records.pop(record, None)
        if self._closed_by_name.get(record.name) is record:
            del self._closed_by_name[record.name]
        self._channel.forget(record)
        if error is not None and record.phase is not Phase.CLOSED:
            record.fail(error)
