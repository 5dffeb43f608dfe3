"""What is kept of closed requests, how long, and what is said of them. No sockets, no waiting."""

from __future__ import annotations

import pytest

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.ledger import SETTLED_AFTER_S, RequestLedger
from scheduler_svc.frontend.record import Phase, RequestRecord


class Outbox:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[engine.FrontendToCore] = []

    def send(self, message: engine.FrontendToCore) -> None:
        copy = engine.FrontendToCore()
        copy.CopyFrom(message)
        self.sent.append(copy)

    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("kind") for message in self.sent]


class World:
    """A ledger on a clock of the test's, connected to a core."""

    def __init__(self, *, max_closed_tokens: int = 10_000) -> None:
        self.now = 100.0
        self.ledger = RequestLedger(clock=lambda: self.now, max_closed_tokens=max_closed_tokens)
        self.outbox = Outbox()
        self.connect(core=1)

    def connect(self, *, core: int) -> None:
        self.ledger.disconnected()
        self.outbox = Outbox()
        self.ledger.connected(self.outbox, core_incarnation=core)

    def live(self, name: str, *, keep_for_ms: int = 0, num_tokens: int = 4) -> RequestRecord:
        """An accepted request with some tokens."""
        submit = engine.Submit(tenant="t", request_id=name, num_outputs=1, keep_for_ms=keep_for_ms)
        record = RequestRecord(submit, now=self.now)
        self.ledger.submit(record)
        self.ledger.accepted(engine.Accepted(number=record.number, max_tokens=9))
        record.outputs[0].take(0, list(range(num_tokens)))
        return record

    def finished(self, name: str, *, keep_for_ms: int, num_tokens: int = 4) -> RequestRecord:
        """A request whose client got everything."""
        record = self.live(name, keep_for_ms=keep_for_ms, num_tokens=num_tokens)
        finish = engine.Finish(num_tokens=num_tokens, reason=engine.END_REASON_LENGTH)
        self.ledger.finish(record, finish)
        self.ledger.close(record)
        return record

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.forget_closed()

    def resubmitted(self) -> list[str]:
        """Names that a new core is given."""
        self.connect(core=self.outbox_core + 1)
        return [m.submit.request_id for m in self.outbox.sent if m.HasField("submit")]

    outbox_core = 1


async def test_a_kept_result_is_mirrored_until_its_time_is_over() -> None:
    world = World()
    world.finished("a", keep_for_ms=60_000)
    world.pass_time(59)
    assert world.resubmitted() == ["a"]
    [message] = world.outbox.sent
    assert message.submit.keep_for_ms == 1000
    assert message.submit.is_detached
    world.pass_time(2)
    world.outbox_core = 2
    assert world.resubmitted() == []


async def test_what_is_not_kept_is_forgotten_once_settled() -> None:
    world = World()
    record = world.finished("a", keep_for_ms=0)
    world.pass_time(SETTLED_AFTER_S - 0.1)
    world.connect(core=1)
    assert world.outbox.kinds() == ["attach"]
    world.ledger.attached(
        engine.Attached(
            number=record.number,
            submit=record.submit,
            outputs=[engine.AttachedOutput(tokens=record.outputs[0].tokens.tobytes())],
        )
    )
    assert world.outbox.kinds() == ["attach", "finish", "detach"]
    world.pass_time(SETTLED_AFTER_S + 0.1)
    world.connect(core=1)
    assert world.outbox.kinds() == []


async def test_the_oldest_results_go_when_there_are_too_many_tokens() -> None:
    world = World(max_closed_tokens=10)
    for name in ("a", "b", "c"):
        world.finished(name, keep_for_ms=60_000, num_tokens=4)
    world.pass_time(SETTLED_AFTER_S + 1)
    assert world.resubmitted() == ["b", "c"]


async def test_a_later_stream_of_the_same_request_takes_its_mirrors_place() -> None:
    world = World()
    world.finished("a", keep_for_ms=60_000)
    world.finished("a", keep_for_ms=60_000)
    assert world.resubmitted() == ["a"]


async def test_a_stream_that_goes_on_takes_its_mirrors_place_before_it_ends() -> None:
    world = World()
    world.ledger.detach(world.live("a", keep_for_ms=60_000), cancel=False)
    world.live("a", keep_for_ms=60_000, num_tokens=6)
    assert world.resubmitted() == ["a"]
    [message] = world.outbox.sent
    assert not message.submit.is_detached
    assert len(message.submit.resume[0].tokens) == 6 * 4


async def test_a_request_that_was_left_and_then_cancelled_is_not_given_to_a_new_core() -> None:
    world = World()
    world.ledger.detach(world.live("a", keep_for_ms=60_000), cancel=False)
    world.ledger.cancel(tenant="t", request_id="a")
    assert world.resubmitted() == []


async def test_a_request_that_nobody_reads_is_suspected_of_deaths_in_a_row_only() -> None:
    world = World()
    world.ledger.detach(world.live("a", keep_for_ms=60_000), cancel=False)
    counted = []
    for seconds in (1.0, 1.0, 20.0, 1.0, 20.0):
        world.pass_time(seconds)
        world.outbox_core += 1
        world.resubmitted()
        counted.append(world.outbox.sent[0].submit.num_core_deaths)
    assert counted == [1, 2, 1, 2, 1]


async def test_a_request_that_is_owned_elsewhere_is_not_mirrored() -> None:
    world = World()
    record = world.finished("a", keep_for_ms=60_000)
    world.ledger.superseded(engine.Superseded(number=record.number))
    assert world.resubmitted() == []


async def test_a_detach_said_to_nobody_is_said_later() -> None:
    world = World()
    record = world.live("a", keep_for_ms=60_000)
    world.ledger.disconnected()
    world.ledger.detach(record, cancel=True)
    world.pass_time(20)
    world.connect(core=1)
    assert world.outbox.kinds() == ["attach"]
    world.ledger.attached(engine.Attached(number=record.number, submit=record.submit))
    assert world.outbox.sent[-1].detach.cancel


async def test_a_request_that_was_never_sent_leaves_no_trace() -> None:
    world = World()
    world.ledger.disconnected()
    record = RequestRecord(engine.Submit(tenant="t", request_id="a"), now=world.now)
    world.ledger.submit(record)
    world.ledger.detach(record, cancel=False)
    world.connect(core=1)
    assert world.outbox.sent == []


async def test_an_unanswered_request_whose_client_left_is_not_given_to_a_new_core() -> None:
    world = World()
    submit = engine.Submit(tenant="t", request_id="a", num_outputs=1, keep_for_ms=60_000)
    record = RequestRecord(submit, now=world.now)
    world.ledger.submit(record)
    world.ledger.detach(record, cancel=False)
    assert world.resubmitted() == []


@pytest.mark.parametrize("cancel", [False, True])
async def test_detaching_twice_says_it_once(*, cancel: bool) -> None:
    world = World()
    record = world.live("a")
    world.ledger.detach(record, cancel=cancel)
    world.ledger.detach(record, cancel=True)
    assert world.outbox.kinds() == ["submit", "detach"]
    assert record.phase is Phase.CLOSED


async def test_times_go_on_while_a_request_waits_to_be_submitted_again() -> None:
    world = World()
    submit = engine.Submit(
        tenant="t", request_id="a", num_outputs=1, time_limit_ms=10_000, age_ms=500
    )
    record = RequestRecord(submit, now=world.now, deadline_at=world.now + 20)
    world.ledger.submit(record)
    first = world.outbox.sent[-1].submit
    assert (first.deadline_ms, first.time_limit_ms, first.age_ms) == (20_000, 10_000, 500)
    world.ledger.accepted(engine.Accepted(number=1, max_tokens=9))
    world.now += 8
    world.connect(core=2)
    again = world.outbox.sent[-1].submit
    assert (again.deadline_ms, again.time_limit_ms, again.age_ms) == (12_000, 2_000, 8_500)
    world.now += 60
    world.connect(core=3)
    late = world.outbox.sent[-1].submit
    assert (late.deadline_ms, late.time_limit_ms) == (1, 1)
