"""Whatever is lost, whoever dies: in the end core and frontend agree on every request.

A model of the core's side of the contract takes the ledger's messages; connections break at any
message, cores are replaced, clients leave.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.ledger import SETTLED_AFTER_S, RequestLedger
from scheduler_svc.frontend.record import Phase, RequestRecord

NUM_TOKENS = 3


def token_at(name: str, index: int) -> int:
    """What the model generates."""
    return (sum(name.encode()) + 31 * index) % 97


@dataclass
class Known:
    """A request as the model of the core holds it."""

    submit: engine.Submit
    number: int | None  # None: nobody owns it
    tokens: list[int]
    num_told: int = 0
    is_settled: bool = False

    @property
    def is_done(self) -> bool:
        return len(self.tokens) >= NUM_TOKENS


@dataclass
class ModelCore:
    """The core's rules for owners; one frontend, one connection at a time."""

    incarnation: int
    requests: dict[str, Known] = field(default_factory=dict)
    outbox: deque[engine.CoreToFrontend] = field(default_factory=deque)

    def orphan_all(self) -> None:
        for known in self.requests.values():
            known.number = None

    def receive(self, message: engine.FrontendToCore) -> None:
        kind = message.WhichOneof("kind")
        if kind == "submit":
            self._submit(message.submit)
        elif kind == "attach":
            self._attach(message.attach.request_id, message.attach.number)
        elif kind == "finish":
            known = self._owned(message.finish.number)
            if known is not None:
                known.is_settled = True
        elif kind == "detach":
            known = self._owned(message.detach.number)
            if known is not None:
                known.number = None
                if message.detach.cancel or not known.submit.keep_for_ms:
                    del self.requests[known.submit.request_id]

    def _owned(self, number: int) -> Known | None:
        return next((one for one in self.requests.values() if one.number == number), None)

    def _submit(self, submit: engine.Submit) -> None:
        known = self.requests.get(submit.request_id)
        if known is not None and not submit.is_detached:
            self._attach(submit.request_id, submit.number)
            return
        if known is None:
            tokens = list(array("i", submit.resume[0].tokens)) if submit.resume else []
            known = self.requests[submit.request_id] = Known(
                submit, None if submit.is_detached else submit.number, tokens, len(tokens)
            )
            known.is_settled = bool(submit.resume and submit.resume[0].is_finished)
        accepted = engine.Accepted(number=submit.number, max_tokens=NUM_TOKENS)
        self.outbox.append(engine.CoreToFrontend(accepted=accepted))

    def _attach(self, name: str, number: int) -> None:
        known = self.requests.get(name)
        if known is None:
            rejected = engine.Rejected(number=number, reason=engine.REJECT_REASON_NOT_FOUND)
            self.outbox.append(engine.CoreToFrontend(rejected=rejected))
            return
        if known.number is not None:
            superseded = engine.Superseded(number=known.number)
            self.outbox.append(engine.CoreToFrontend(superseded=superseded))
        known.number, known.num_told = number, len(known.tokens)
        output = engine.AttachedOutput(tokens=array("i", known.tokens).tobytes())
        if known.is_done:
            output.end.CopyFrom(self._end(number))
        held = engine.Submit()
        held.CopyFrom(known.submit)
        del held.resume[:]
        attached = engine.Attached(number=number, submit=held, outputs=[output])
        self.outbox.append(engine.CoreToFrontend(attached=attached))

    def step(self) -> None:
        """One token for every request, told to its owner."""
        deliver = engine.Deliver()
        rows: list[tuple[int, int, int]] = []
        for name, known in self.requests.items():
            if not known.is_done and not known.is_settled:
                known.tokens.append(token_at(name, len(known.tokens)))
            if known.number is None or known.num_told == len(known.tokens):
                continue
            rows += [
                (known.number, index, known.tokens[index])
                for index in range(known.num_told, len(known.tokens))
            ]
            known.num_told = len(known.tokens)
            if known.is_done:
                deliver.ends.append(self._end(known.number))
        if rows:
            deliver.numbers = array("i", [row[0] for row in rows]).tobytes()
            deliver.output_indexes = array("i", [0] * len(rows)).tobytes()
            deliver.first_token_indexes = array("i", [row[1] for row in rows]).tobytes()
            deliver.tokens = array("i", [row[2] for row in rows]).tobytes()
            self.outbox.append(engine.CoreToFrontend(deliver=deliver))

    def _end(self, number: int) -> engine.OutputEnd:
        return engine.OutputEnd(
            number=number, num_tokens=NUM_TOKENS, reason=engine.END_REASON_LENGTH
        )


class LedgerMachine(RuleBasedStateMachine):
    """Everything that may happen between a frontend and its core, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.ledger = RequestLedger(clock=lambda: self.now, max_closed_tokens=10_000)
        self.core = ModelCore(incarnation=1)
        self.wire: deque[engine.FrontendToCore] = deque()
        self.is_connected = False
        self.records: list[RequestRecord] = []

    def send(self, message: engine.FrontendToCore) -> None:
        """The ledger's connection."""
        copy = engine.FrontendToCore()
        copy.CopyFrom(message)
        self.wire.append(copy)

    @rule(is_kept=st.booleans())
    def submit(self, *, is_kept: bool) -> None:
        submit = engine.Submit(
            request_id=f"r{len(self.records)}",
            num_outputs=1,
            keep_for_ms=10_000_000 if is_kept else 0,
        )
        self.records.append(self.loop.run_until_complete(self._made(submit)))
        self.ledger.submit(self.records[-1])

    async def _made(self, submit: engine.Submit) -> RequestRecord:
        return RequestRecord(submit, now=self.now)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), cancel=st.booleans())
    def leave(self, data: st.DataObject, *, cancel: bool) -> None:
        self.ledger.detach(data.draw(st.sampled_from(self.records)), cancel=cancel)

    @rule(count=st.integers(1, 5))
    def core_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            self.core.receive(self.wire.popleft())

    @rule(count=st.integers(1, 5))
    def core_steps(self, count: int) -> None:
        for _ in range(count):
            self.core.step()

    @rule(count=st.integers(1, 5))
    def frontend_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.core.outbox))):
            self._hear(self.core.outbox.popleft())
        self._end_streams()

    @rule()
    def all_flows(self) -> None:
        """What usually happens."""
        self.core_reads(10_000)
        self.core.step()
        self.frontend_reads(10_000)

    @precondition(lambda self: self.is_connected)
    @rule()
    def connection_breaks(self) -> None:
        """What is on the way is lost, both ways."""
        self.ledger.disconnected()
        self.wire.clear()
        self.core.outbox.clear()
        self.is_connected = False

    @precondition(lambda self: not self.is_connected)
    @rule(is_new_core=st.sampled_from([False, False, True]))
    def connects(self, *, is_new_core: bool) -> None:
        if is_new_core:
            self.core = ModelCore(incarnation=self.core.incarnation + 1)
        self.core.orphan_all()
        self.core.outbox.clear()  # what was said to the former connection
        self.is_connected = True
        self.ledger.connected(self, core_incarnation=self.core.incarnation)

    @rule(seconds=st.sampled_from([0.1, 1.0]))
    def time_passes(self, seconds: float) -> None:
        """A connection on which nothing arrives for so long would not live."""
        self.core_reads(10_000)
        self.now += seconds
        self.ledger.forget_closed()

    def teardown(self) -> None:
        try:
            self._settle()
        finally:
            self.loop.close()

    def _settle(self) -> None:
        """In a calm stretch everything is brought to its end."""
        if not self.is_connected:
            self.connects(is_new_core=False)
        for _ in range(8 * NUM_TOKENS):
            self.all_flows()
            self._check_prefixes()
        assert list(self.ledger.unanswered()) == []
        assert list(self.ledger.live()) == []
        self.time_passes(SETTLED_AFTER_S + 61)
        for record in self.records:
            self._check_end(record)

    def _hear(self, message: engine.CoreToFrontend) -> None:
        kind = message.WhichOneof("kind")
        assert kind is not None
        handlers: dict[str, Callable[[Any], None]] = {
            "accepted": self.ledger.accepted,
            "attached": self.ledger.attached,
            "rejected": self.ledger.rejected,
            "superseded": self.ledger.superseded,
            "deliver": self.ledger.deliver,
        }
        handlers[kind](getattr(message, kind))

    def _end_streams(self) -> None:
        """Streams confirm ends, as soon as they have them."""
        for record in list(self.ledger.live()):
            end = record.outputs[0].end
            if end is not None:
                finish = engine.Finish(num_tokens=end.num_tokens, reason=end.reason)
                self.ledger.finish(record, finish)
                self.ledger.close(record)

    def _check_prefixes(self) -> None:
        for record in self.records:
            name = record.submit.request_id
            tokens = record.outputs[0].tokens
            assert list(tokens) == [token_at(name, i) for i in range(len(tokens))]

    def _check_end(self, record: RequestRecord) -> None:
        assert record.failure is None
        assert record.phase is Phase.CLOSED
        known = self.core.requests.get(record.submit.request_id)
        was_read = record.detach is None
        if was_read:
            assert len(record.outputs[0].tokens) == NUM_TOKENS
            assert known is None or known.is_settled
        elif known is not None:
            assert record.detach is not None
            assert not record.detach.cancel, "a cancelled request lives on"
            assert record.submit.keep_for_ms, "a request nobody keeps lives on"


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=4 * settings().max_examples)
