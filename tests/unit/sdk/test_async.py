"""The asyncio client does what the blocking one does."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator

import grpc
import pytest

import octavo
from tests.fakes.inference_server import FakeInferenceServer, Refusal

SOON = octavo.RetryPolicy(max_attempts=3, first_wait_s=0.01)
GO_ON_SOON = octavo.ReconnectPolicy(max_attempts=3, first_wait_s=0.01)
LOST = Refusal(code=grpc.StatusCode.UNAVAILABLE, is_bare=True)
BROKEN = Refusal(code=grpc.StatusCode.UNAVAILABLE, is_bare=True, after_chunks=2)


@pytest.fixture
async def aio(server: FakeInferenceServer) -> AsyncIterator[octavo.AsyncClient]:
    async with octavo.AsyncClient(server.target, retry=SOON, reconnect=GO_ON_SOON) as client:
        yield client


def public_signatures(kind: type) -> dict[str, inspect.Signature]:
    return {
        name.removeprefix("a") if name == "aclose" else name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    blocking, asynchronous = (public_signatures(c) for c in (octavo.Client, octavo.AsyncClient))
    assert blocking.keys() == asynchronous.keys()
    for name, signature in blocking.items():
        assert list(signature.parameters.values()) == list(asynchronous[name].parameters.values())
    assert inspect.signature(octavo.Client) == inspect.signature(octavo.AsyncClient)


def test_both_streams_have_the_same_methods() -> None:
    assert public_signatures(octavo.Stream).keys() == public_signatures(octavo.AsyncStream).keys()


async def test_every_call_answers_as_the_blocking_one(
    aio: octavo.AsyncClient, client: octavo.Client
) -> None:
    assert await aio.chat("a b", request_id="r") == client.chat("a b", request_id="r")
    assert await aio.generate([97], request_id="r") == client.generate([97], request_id="r")
    assert await aio.tokenize("ab") == client.tokenize("ab")
    assert await aio.estimate("abc") == client.estimate("abc")
    assert await aio.detokenize([97]) == client.detokenize([97])
    assert await aio.model_info() == client.model_info()
    streamed = [delta async for delta in aio.stream(messages="a b c", n=2)]
    assert streamed == list(client.stream(messages="a b c", n=2))
    assert await aio.attach("r").result() == client.attach("r").result()
    assert await aio.cancel("r") is octavo.CancelOutcome.CANCELLED


async def test_many_streams_run_at_once(aio: octavo.AsyncClient) -> None:
    streams = [aio.stream(f"number {i}") for i in range(50)]
    results = await asyncio.gather(*(stream.result() for stream in streams))
    assert [result.text for result in results] == [f"You said: number {i}" for i in range(50)]


async def test_errors_carry_the_services_details(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    refusal = Refusal(
        code=grpc.StatusCode.INVALID_ARGUMENT, violations=(("generation.prompt", "is empty"),)
    )
    server.refuse(refusal, refusal)
    with pytest.raises(octavo.InvalidRequest, match="is empty"):
        await aio.generate("")
    with pytest.raises(octavo.InvalidRequest, match="is empty"):
        await aio.stream("").result()


async def test_calls_are_tried_again_before_their_first_message(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    unavailable = Refusal(code=grpc.StatusCode.UNAVAILABLE)
    server.refuse(unavailable, unavailable)
    assert (await aio.generate("a")).text == "You said: a"
    server.refuse(unavailable, unavailable)
    assert (await aio.stream("a").result()).text == "You said: a"
    assert server.num_calls == 6


async def test_a_break_does_not_show(aio: octavo.AsyncClient, server: FakeInferenceServer) -> None:
    undisturbed = [delta async for delta in aio.stream("a b c", n=2)]
    server.refuse(BROKEN, LOST)
    stream = aio.stream("a b c", n=2, request_id="r")
    assert [delta async for delta in stream] == undisturbed
    assert server.openings == ["GENERATE", "GENERATE", "ATTACH", "ATTACH"]
    assert stream.num_reconnects == 2
    server.refuse(BROKEN)
    assert (await aio.generate("a b c")).text == "You said: a b c"
    server.refuse(BROKEN)
    rest = aio.attach("r", from_tokens=[4, 4])
    assert (await rest.result()).text == "said: a b c"


async def test_what_nobody_knows_any_more_is_resumed(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.refuse(BROKEN)
    stream = aio.stream("a b c", request_id="r")
    received = [await anext(stream), await anext(stream)]
    server.forget("r")
    received += [delta async for delta in stream]
    assert "".join(delta.text for delta in received) == "You said: a b c"
    assert server.openings == ["GENERATE", "ATTACH", "RESUME"]


async def test_a_stream_that_was_accepted_and_brought_nothing_goes_on(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.refuse(Refusal(code=grpc.StatusCode.UNAVAILABLE, after_headers=True, is_bare=True))
    assert (await aio.stream("a b c").result()).text == "You said: a b c"
    assert server.openings == ["GENERATE", "ATTACH"]


async def test_what_came_is_in_the_error_of_a_lost_stream(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.refuse(BROKEN, *[LOST] * 10)
    stream = aio.stream("a b c")
    with pytest.raises(octavo.Unavailable) as caught:
        await stream.result()
    assert caught.value.received == stream.partial()
    assert stream.partial().text == "You said: "
    assert server.openings == ["GENERATE"] + ["ATTACH"] * 3
    assert [delta async for delta in stream] == []


async def test_cancelling_the_task_while_the_stream_waits_to_go_on_cancels(
    server: FakeInferenceServer,
) -> None:
    patient = octavo.ReconnectPolicy(first_wait_s=3600.0, longest_wait_s=3600.0, limit_s=1e6)
    attached = threading.Event()
    server.refuse(BROKEN, LOST)
    async with octavo.AsyncClient(server.target, reconnect=patient) as client:
        stream = client.stream("a b c")
        await anext(stream)
        await anext(stream)
        server.on_call = attached.set
        reader = asyncio.create_task(stream.result())
        assert await asyncio.to_thread(attached.wait, 20)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await asyncio.to_thread(server.wait_for_cancel, stream.request_id)


async def test_closing_early_cancels(aio: octavo.AsyncClient, server: FakeInferenceServer) -> None:
    server.hold_after_chunks = 1
    async with aio.stream("a b c") as stream:
        assert (await anext(stream)).text == "You "
    assert server.cancelled() == [stream.request_id]
    assert [delta async for delta in stream] == []


async def test_dropping_a_stream_cancels(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 1
    async for _ in aio.stream("a b c", request_id="dropped"):
        break
    await aio.aclose()
    assert server.cancelled() == ["dropped"]


async def test_dropping_a_stream_in_another_thread_cancels(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 1
    streams = [aio.stream("a b c", request_id="dropped")]
    await anext(streams[0])
    thread = threading.Thread(target=streams.clear)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert await asyncio.to_thread(server.wait_for_cancel, "dropped")


async def test_cancelling_the_reading_task_cancels(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 1
    stream = aio.stream("a b c")
    await anext(stream)
    reader = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await asyncio.to_thread(server.wait_for_cancel, stream.request_id)


async def test_closing_from_another_task_ends_the_reader(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 1
    stream = aio.stream("a b c")
    await anext(stream)
    reader = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    await stream.aclose()
    assert (await reader).text == "You "


async def test_detaching_does_not_cancel(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 1
    stream = aio.stream("a b c")
    await anext(stream)
    stream.detach()
    assert await asyncio.to_thread(server.wait_for_departure, stream.request_id)
    await aio.aclose()
    assert server.cancelled() == []


async def test_a_deadline_ends_the_stream_and_cancels(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 1
    stream = aio.stream("a b c", timeout=0.2)
    with pytest.raises(octavo.DeadlineExceeded):
        await stream.result()
    assert await asyncio.to_thread(server.wait_for_cancel, stream.request_id)


async def test_a_client_closed_during_a_call_says_so(
    aio: octavo.AsyncClient, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 0
    call = asyncio.create_task(aio.generate("a", request_id="r"))
    assert await asyncio.to_thread(server.wait_for_hold, "r")
    await aio.aclose()
    with pytest.raises(octavo.ClientClosed):
        await call
    with pytest.raises(octavo.ClientClosed):
        await aio.generate("a")


def test_a_client_belongs_to_one_loop(server: FakeInferenceServer) -> None:
    client = octavo.AsyncClient(server.target)

    async def use() -> None:
        await client.generate("a")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(use())
    loop.run_until_complete(client.aclose())
    loop.close()
