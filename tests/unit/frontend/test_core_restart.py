"""A core that dies, falls silent or loses messages: streams go on, byte for byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend import patience
from scheduler_svc.frontend.model import ServedModel
from tests.unit.frontend.frontend_service import Service, running_service
from tests.unit.frontend.scripted_core import output
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

TEXT = "naïve café — 12€ and more"


async def begun(
    service: Service, wanted: api.Generation, *, num_tokens: int
) -> tuple[Reader, engine.Submit]:
    """A stream whose client has read all of the first tokens that can be read."""
    reader = Reader(service.stub, wanted, timeout_s=30)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    ids = service.ids(TEXT)
    for index in range(num_tokens):
        await service.core.deliver(submit.number, [ids[index]], first=index)
    await service.until(
        lambda: any(r.num_tokens == num_tokens for r in service.services.ledger.live())
    )
    return reader, submit


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 12])
async def test_a_stream_survives_a_new_core_with_the_same_text(
    service: Service, num_tokens: int
) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, first = await begun(
        service, generation(request_id="mine", seed=3), num_tokens=num_tokens
    )
    await core.restart()
    again = await core.expect("submit")
    assert (again.request_id, again.sampling.seed) == ("mine", 3)
    assert again.was_accepted
    assert again.num_core_deaths == 1
    assert again.age_ms >= first.age_ms
    assert again.blob == first.blob
    known = [len(one.tokens) // 4 for one in again.resume]
    assert known == ([num_tokens] if num_tokens else [])
    await core.accept(again)
    await core.deliver(
        again.number, ids[num_tokens:], first=num_tokens, end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    assert (reader.texts, reader.ids) == ([TEXT], [ids])
    assert (await core.expect("finish")).number == again.number


async def test_deaths_are_counted_until_a_token_comes(service: Service) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, _ = await begun(service, generation(), num_tokens=2)
    counts = []
    for num_tokens in (2, 3):
        await core.restart()
        again = await core.expect("submit")
        counts.append(again.num_core_deaths)
        await core.accept(again)
        if num_tokens == 3:
            await core.deliver(again.number, [ids[2]], first=2)
    await service.until(lambda: any(r.num_tokens == 3 for r in service.services.ledger.live()))
    await core.restart()
    counts.append((await core.expect("submit")).num_core_deaths)
    assert counts == [1, 2, 1]
    reader.call.cancel()


async def test_an_ended_output_is_not_run_again(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(n=2), timeout_s=30)
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, service.ids("one"), end=engine.END_REASON_LENGTH)
    await core.deliver(submit.number, service.ids("tw"), output=1)
    await core.expect("finish")
    await core.restart()
    again = await core.expect("submit")
    assert [one.is_finished for one in again.resume] == [True, False]
    assert again.resume[0].reason == engine.END_REASON_LENGTH
    await core.accept(again)
    await core.deliver(
        again.number, service.ids("o"), first=2, output=1, end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    assert reader.texts == ["one", "two"]
    assert (await core.expect("finish")).output_index == 1
    await core.expect_nothing()


async def test_an_unanswered_request_is_submitted_again(service: Service) -> None:
    reader = Reader(service.stub, generation(), timeout_s=30)
    await service.core.expect("submit")
    await service.core.restart()
    again = await service.core.expect("submit")
    assert not again.was_accepted
    await service.core.accept(again)
    await service.core.deliver(again.number, service.ids("ok"), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert reader.texts == ["ok"]


async def test_a_kept_request_whose_client_left_is_submitted_as_detached(
    service: Service,
) -> None:
    reader, _ = await begun(service, generation(keep_for_s=60), num_tokens=4)
    reader.call.cancel()
    await service.core.expect("detach")
    await service.core.restart()
    again = await service.core.expect("submit")
    assert again.is_detached
    assert again.was_accepted
    assert 0 < again.keep_for_ms <= 60_000
    assert len(again.resume[0].tokens) // 4 == 4


async def test_a_kept_result_is_given_to_the_new_core(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(keep_for_s=60, stop=["!"]), timeout_s=30)
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, service.ids("done!xx"))
    await reader.read_all()
    await core.expect("finish")
    await core.restart()
    again = await core.expect("submit")
    [one] = again.resume
    assert again.is_detached
    assert (one.is_finished, one.reason, one.message) == (
        True,
        engine.END_REASON_STOP_STRING,
        "!",
    )
    assert len(one.tokens) // 4 == len("done!")


async def test_what_nobody_wants_any_more_is_not_submitted_again(service: Service) -> None:
    reader, _ = await begun(service, generation(), num_tokens=2)
    reader.call.cancel()
    await service.core.expect("detach")
    await service.core.restart()
    await service.until(lambda: service.core.num_hellos == 2)
    await service.core.expect_nothing()


async def test_a_lost_message_leads_to_a_fresh_connection_that_attaches(
    service: Service,
) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, submit = await begun(service, generation(request_id="mine"), num_tokens=3)
    core.lose_a_message()
    await core.deliver(submit.number, [ids[3]], first=3)
    order = await core.expect("attach")
    assert (core.num_hellos, order.request_id, order.number) == (2, "mine", 1)
    assert order.deadline_ms > 0
    await core.attached(order.number, submit, [output(ids[:8])])
    await core.deliver(order.number, ids[8:], first=8, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert (reader.texts, reader.ids) == ([TEXT], [ids])


async def test_missing_tokens_lead_to_a_fresh_connection(service: Service) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, submit = await begun(service, generation(), num_tokens=3)
    await core.deliver(submit.number, [ids[5]], first=5)
    order = await core.expect("attach")
    await core.attached(order.number, submit, [output(ids, end=engine.END_REASON_LENGTH)])
    await reader.read_all()
    assert reader.ids == [ids]


async def test_tokens_that_come_twice_do_no_harm(service: Service) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, submit = await begun(service, generation(), num_tokens=3)
    await core.deliver(submit.number, ids[:5])
    await core.deliver(submit.number, [ids[4]], first=4)
    await core.deliver(submit.number, ids[2:], first=2, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert (reader.texts, reader.ids) == ([TEXT], [ids])


async def test_a_silent_core_is_greeted_again_and_keeps_its_requests(service: Service) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, submit = await begun(service, generation(), num_tokens=3)
    core.is_silent = True
    await service.until(lambda: core.num_hellos >= 2)
    core.is_silent = False
    order = await core.expect("attach")
    await core.attached(order.number, submit, [output(ids[:3])])
    await core.deliver(order.number, ids[3:], first=3, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert reader.ids == [ids]


async def test_an_unsettled_finish_and_detach_are_repeated_on_a_fresh_connection(
    service: Service,
) -> None:
    core = service.core
    done = Reader(service.stub, generation(request_id="done"), timeout_s=30)
    first = await core.expect("submit")
    await core.accept(first)
    await core.deliver(first.number, service.ids("ab"), end=engine.END_REASON_LENGTH)
    await done.read_all()
    await core.expect("finish")
    left, second = await begun(service, generation(request_id="left"), num_tokens=1)
    left.call.cancel()
    await core.expect("detach")
    core.lose_a_message()
    await core.tell_status()
    orders = {order.request_id: order for order in [await core.expect("attach") for _ in range(2)]}
    await core.attached(
        orders["done"].number, first, [output(service.ids("ab"), end=engine.END_REASON_LENGTH)]
    )
    finish = await core.expect("finish")
    assert (finish.number, finish.num_tokens) == (orders["done"].number, 2)
    assert (await core.expect("detach")).number == orders["done"].number
    await core.attached(orders["left"].number, second, [output(service.ids(TEXT)[:1])])
    assert (await core.expect("detach")).number == orders["left"].number


async def test_a_request_forgotten_by_a_living_core_is_submitted_again(
    service: Service,
) -> None:
    core, ids = service.core, service.ids(TEXT)
    reader, submit = await begun(service, generation(), num_tokens=3)
    core.lose_a_message()
    await core.tell_status()
    order = await core.expect("attach")
    await core.reject(order.number, engine.REJECT_REASON_NOT_FOUND)
    again = await core.expect("submit")
    assert again.was_accepted
    assert again.num_core_deaths == submit.num_core_deaths
    await core.accept(again)
    await core.deliver(again.number, ids[3:], first=3, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert reader.ids == [ids]


async def test_a_core_that_holds_other_tokens_ends_the_stream(service: Service) -> None:
    core = service.core
    reader, submit = await begun(service, generation(), num_tokens=3)
    core.lose_a_message()
    await core.tell_status()
    order = await core.expect("attach")
    await core.attached(order.number, submit, [output([7, 7, 7, 7])])
    refusal = await refusal_of(reader)
    assert refusal.code is grpc.StatusCode.INTERNAL
    assert (await core.expect("detach")).number == order.number


async def test_a_core_that_never_comes_back_ends_the_streams(
    model: ServedModel, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "STREAM_LIMIT_S", 0.5)
    async with running_service(model, run_dir) as service:
        reader, _ = await begun(service, generation(), num_tokens=2)
        await service.core.stop()
        refusal = await refusal_of(reader)
    assert (refusal.code, refusal.info.reason) == (
        grpc.StatusCode.UNAVAILABLE,
        "CORE_UNREACHABLE",
    )


async def test_beats_answer_life_signs(service: Service) -> None:
    before = service.core.num_beats
    await service.until(lambda: service.core.num_beats >= before + 3)
    assert service.core.num_hellos == 1
    assert service.core.gaps == []


async def test_many_streams_survive_together(service: Service) -> None:
    core, ids = service.core, service.ids(TEXT)
    readers = []
    for index in range(20):
        reader, _ = await begun_one_of_many(service, index)
        readers.append(reader)
    await core.restart()
    for _ in range(20):
        again = await core.expect("submit")
        known = len(again.resume[0].tokens) // 4 if again.resume else 0
        await core.accept(again)
        await core.deliver(again.number, ids[known:], first=known, end=engine.END_REASON_LENGTH)
    await asyncio.gather(*(reader.read_all() for reader in readers))
    assert [reader.texts for reader in readers] == [[TEXT]] * 20


async def begun_one_of_many(service: Service, index: int) -> tuple[Reader, engine.Submit]:
    reader = Reader(service.stub, generation(request_id=f"r-{index}"), timeout_s=30)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids(TEXT)[: index % 7])
    return reader, submit
