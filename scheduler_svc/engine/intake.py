"""What frontends ask, to the core and back. Knows the order of answers; decides nothing about
requests.

News that waits in the core is told before a request changes its owner, so that nobody is told
twice.
"""

import logging
from typing import Protocol

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.core import Core
from scheduler_svc.core.news import Accepted, Attached
from scheduler_svc.core.refusals import (
    Draining,
    InvalidField,
    NoWorkers,
    Refused,
    UnknownRequest,
)
from scheduler_svc.engine.connection import Connection, Incoming
from scheduler_svc.engine.delivery import Delivery
from scheduler_svc.engine.grammar.grammars import Grammars
from scheduler_svc.engine.holding import Held, Holding, Name
from scheduler_svc.engine.questions import answer_estimate
from scheduler_svc.engine.request_codec import (
    decode_end_reason,
    decode_submit,
    encode_attached,
    encode_rejected,
    refusal_label,
    time_after,
)

_LOG = logging.getLogger(__name__)


class Owners(Protocol):
    """What intake needs of the frontend link."""

    def connection(self, owner: int) -> Connection | None:
        """The living connection of an owner."""


class LabelledCounter(Protocol):
    """Counts refusals."""

    def add(self, amount: float = 1.0, *labels: str) -> None:
        """Counts `amount` more under the labels."""


class Intake:
    """Takes every kind of message but Hello and beats."""

    def __init__(
        self,
        core: Core,
        *,
        owners: Owners,
        delivery: Delivery,
        holding: Holding,
        rejections: LabelledCounter,
        workers_grace_s: float,
        grammars: Grammars,
    ) -> None:
        self._core = core
        self._owners = owners
        self._delivery = delivery
        self._holding = holding
        self._rejections = rejections
        self._workers_grace_s = workers_grace_s
        self._grammars = grammars
        self._is_draining = False
        self._are_workers_gone = False

    def receive(self, incoming: Incoming, now: float) -> None:
        """Takes one message."""
        kind = incoming.message.WhichOneof("kind")
        if kind == "submit":
            self._submit(incoming, now)
        elif kind == "attach":
            self._attach(incoming, now)
        elif kind == "cancel":
            self._cancel(incoming, now)
        elif kind == "finish":
            self._finish(incoming.connection, incoming.message.finish, now)
        elif kind == "detach":
            self._detach(incoming.connection, incoming.message.detach, now)
        elif kind == "estimate":
            self._estimate(incoming)

    def refuse_new(self, *, draining: bool, no_workers: bool, now: float) -> None:
        """Says whether new requests are refused from now on, held ones included."""
        self._is_draining, self._are_workers_gone = draining, no_workers
        self._core.refuse_new(draining=draining, no_workers=no_workers)
        for held in self._holding.take_for_workers() if draining or no_workers else []:
            self._receive_held(held, now)

    def expire(self, now: float) -> None:
        """Answers what was held and need not wait any longer."""
        if self._core.max_sequence_tokens:
            for held in self._holding.take_for_workers():
                self._receive_held(held, now)
        if self._grammars.settle():
            for held in self._holding.take_for_grammar():
                self._receive_held(held, now)
        for held in self._holding.take_uncompiled(now):
            number = held.incoming.message.submit.number
            self._reject(held.incoming.connection, number, self._grammars.overdue())
        for held in self._holding.take_overdue(now):
            number = held.incoming.message.submit.number
            self._reject(held.incoming.connection, number, NoWorkers())
        for held in self._holding.take_unknown(now):
            self._receive_held(held, now)

    def _receive_held(self, held: Held, now: float) -> None:
        if not held.incoming.connection.is_lost:
            self.receive(held.incoming, now)

    # --- requests ---

    def _submit(self, incoming: Incoming, now: float) -> None:
        connection, submit = incoming.connection, incoming.message.submit
        name = (submit.tenant, submit.request_id)
        if not self._core.max_sequence_tokens:
            self._submit_before_workers(incoming, name)
            return
        is_resumed_elsewhere = submit.resume and not submit.was_accepted
        if is_resumed_elsewhere and self._holding.may_become_known(name, now):
            held = Held(incoming=incoming, name=name, number=submit.number)
            self._holding.wait_for_name(held)
            return
        self._delivery.deliver(self._core.take_news())
        try:
            grammar = self._grammars.of(submit)
            if grammar is None and submit.HasField("grammar"):
                self._hold_for_grammar(incoming, name)
                return
            request = decode_submit(
                submit, owner=connection.owner, now=incoming.received_at, grammar=grammar
            )
            answer = self._core.submit(request, now)
        except Refused as refusal:
            self._reject(connection, submit.number, refusal)
            return
        self._answer(connection, submit.number, answer, now)
        self._holding.note_known(name, now)
        for waiting in self._holding.take_named(name):
            self._receive_held(waiting, now)

    def _hold_for_grammar(self, incoming: Incoming, name: Name) -> None:
        submit = incoming.message.submit
        give_up_at = incoming.received_at + self._grammars.limit_s
        held = Held(
            incoming=incoming,
            name=name,
            number=submit.number,
            give_up_at=None if submit.was_accepted else give_up_at,
        )
        self._holding.wait_for_grammar(held)

    def _submit_before_workers(self, incoming: Incoming, name: Name) -> None:
        submit = incoming.message.submit
        refusal: Refused | None = None
        if not submit.was_accepted:
            if self._is_draining:
                refusal = Draining()
            elif self._are_workers_gone:
                refusal = NoWorkers()
        if refusal is not None:
            self._reject(incoming.connection, submit.number, refusal)
            return
        give_up_at = incoming.received_at + self._workers_grace_s
        held = Held(
            incoming=incoming,
            name=name,
            number=submit.number,
            give_up_at=None if submit.was_accepted else give_up_at,
        )
        self._holding.wait_for_workers(held)

    def _attach(self, incoming: Incoming, now: float) -> None:
        connection, attach = incoming.connection, incoming.message.attach
        name = (attach.tenant, attach.request_id)
        self._delivery.deliver(self._core.take_news())
        try:
            attached = self._core.attach(
                tenant=attach.tenant,
                request_id=attach.request_id,
                owner=connection.owner,
                number=attach.number,
                deadline=time_after(attach.deadline_ms, incoming.received_at),
                now=now,
            )
        except UnknownRequest as refusal:
            if self._holding.may_become_known(name, now):
                held = Held(incoming=incoming, name=name, number=attach.number)
                self._holding.wait_for_name(held)
            else:
                self._reject(connection, attach.number, refusal)
        except Refused as refusal:
            self._reject(connection, attach.number, refusal)
        else:
            self._answer(connection, attach.number, attached, now)

    def _answer(
        self, connection: Connection, number: int, answer: Accepted | Attached, now: float
    ) -> None:
        if isinstance(answer, Accepted):
            accepted = engine.Accepted(number=number, max_tokens=answer.max_tokens)
            connection.post(engine.CoreToFrontend(accepted=accepted))
            return
        former = answer.superseded
        if former is not None:
            self._delivery.forget_request(former.owner, former.number)
            owner = self._owners.connection(former.owner)
            if owner is not None:
                superseded = engine.Superseded(number=former.number)
                owner.post(engine.CoreToFrontend(superseded=superseded))
        attached = encode_attached(answer, number=number, now=now)
        connection.post(engine.CoreToFrontend(attached=attached))

    def _reject(self, connection: Connection, number: int, refusal: Refused) -> None:
        self._rejections.add(1, refusal_label(refusal))
        rejected = encode_rejected(refusal, number=number)
        connection.post(engine.CoreToFrontend(rejected=rejected))

    # --- what ends requests ---

    def _cancel(self, incoming: Incoming, now: float) -> None:
        cancel = incoming.message.cancel
        name = (cancel.tenant, cancel.request_id)
        answer = self._core.cancel(tenant=cancel.tenant, request_id=cancel.request_id, now=now)
        if not answer.is_known and self._holding.may_become_known(name, now):
            self._holding.wait_for_name(Held(incoming=incoming, name=name))
            return
        out = engine.CancelAnswer(
            call=cancel.call, is_known=answer.is_known, was_finished=answer.was_finished
        )
        incoming.connection.post(engine.CoreToFrontend(cancel_answer=out))

    def _estimate(self, incoming: Incoming) -> None:
        connection = incoming.connection
        try:
            answer = answer_estimate(self._core, incoming.message.estimate)
        except ValueError as error:
            _LOG.error("%s: ignored an Estimate: %s", connection.name, error)
            return
        connection.post(engine.CoreToFrontend(estimate_answer=answer))

    def _finish(self, connection: Connection, finish: engine.Finish, now: float) -> None:
        try:
            reason = decode_end_reason(finish.reason)
        except InvalidField as error:
            _LOG.error("%s: ignored a Finish: %s", connection.name, error)
            return
        self._core.finish_output(
            owner=connection.owner,
            number=finish.number,
            output_index=finish.output_index,
            num_tokens=finish.num_tokens,
            reason=reason,
            stop_string=finish.stop_string,
            now=now,
        )
        self._delivery.forget_output(connection.owner, finish.number, finish.output_index)

    def _detach(self, connection: Connection, detach: engine.Detach, now: float) -> None:
        held = self._holding.take_request(connection, detach.number)
        if held is not None:
            self._detach_held(held, cancel=detach.cancel)
            return
        self._core.detach(
            owner=connection.owner, number=detach.number, cancel=detach.cancel, now=now
        )
        self._delivery.forget_request(connection.owner, detach.number)

    def _detach_held(self, held: Held, *, cancel: bool) -> None:
        submit = held.incoming.message.submit
        is_submit = held.incoming.message.WhichOneof("kind") == "submit"
        if not is_submit or cancel or not submit.keep_for_ms:
            return  # nothing was kept yet, so there is nothing to end
        submit.is_detached = True
        if self._core.max_sequence_tokens:
            self._holding.wait_for_name(held)
        else:
            self._holding.wait_for_workers(held)
