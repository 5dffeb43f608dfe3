"""Streams that are left before their end: the service learns it, on every way out."""

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import octavo
from tests.fakes.inference_server import FakeInferenceServer


@pytest.fixture
def held(server: FakeInferenceServer) -> FakeInferenceServer:
    """A service whose streams stop after two chunks and wait."""
    server.hold_after_chunks = 2
    return server


def test_closing_early_cancels(client: octavo.Client, held: FakeInferenceServer) -> None:
    stream = client.stream("a b c", keep_for_s=60.0)
    next(stream)
    stream.close()
    stream.close()
    assert held.cancelled() == [stream.request_id]
    assert held.wait_for_departure(stream.request_id)
    assert list(stream) == []


def test_leaving_a_with_block_early_cancels(
    client: octavo.Client, held: FakeInferenceServer
) -> None:
    with client.stream("a b c") as stream:
        next(stream)
    assert held.cancelled() == [stream.request_id]


def test_dropping_a_stream_cancels(client: octavo.Client, held: FakeInferenceServer) -> None:
    for delta in client.stream("a b c", request_id="dropped"):
        assert delta.text == "You "
        break
    assert held.wait_for_cancel("dropped")
    assert held.wait_for_departure("dropped")


def test_closing_the_client_cancels_its_streams(held: FakeInferenceServer) -> None:
    client = octavo.Client(held.target)
    streams = [client.stream("a b c") for _ in range(3)]
    for stream in streams:
        next(stream)
    client.close()
    assert sorted(held.cancelled()) == sorted(stream.request_id for stream in streams)


def test_closing_from_another_thread_ends_the_reader(
    client: octavo.Client, held: FakeInferenceServer
) -> None:
    stream = client.stream("a b c")
    threading.Timer(0.05, stream.close).start()
    assert [delta.text for delta in stream] == ["You ", "said: "]
    assert held.wait_for_cancel(stream.request_id)


def test_detaching_does_not_cancel(client: octavo.Client, held: FakeInferenceServer) -> None:
    stream = client.stream("a b c")
    next(stream)
    stream.detach()
    assert held.wait_for_departure(stream.request_id)
    del stream
    assert held.cancelled() == []


def test_a_stream_that_ended_is_not_cancelled(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    with client.stream("a b c") as stream:
        stream.result()
    del stream
    client.close()
    assert server.cancelled() == []


def test_a_stream_outlives_the_name_of_its_client(server: FakeInferenceServer) -> None:
    assert octavo.Client(server.target).stream("a b").result().text == "You said: a b"


def test_a_program_that_ends_in_the_middle_cancels(held: FakeInferenceServer) -> None:
    program = (
        "import octavo\n"
        f"stream = octavo.Client({held.target!r}).stream('a b c', request_id='left')\n"
        "print(next(stream).text)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("You \n", "")
    assert held.wait_for_cancel("left")


def test_a_deadline_ends_the_stream_and_cancels(
    client: octavo.Client, held: FakeInferenceServer
) -> None:
    stream = client.stream("a b c", timeout=0.2)
    with pytest.raises(octavo.DeadlineExceeded):
        stream.result()
    assert stream.partial().text == "You said: "
    assert held.wait_for_cancel(stream.request_id)


def test_a_deadline_ends_a_unary_call(client: octavo.Client, held: FakeInferenceServer) -> None:
    with pytest.raises(octavo.DeadlineExceeded):
        client.generate("a b c", timeout=0.2)


def test_the_clients_timeout_holds_for_every_generation(held: FakeInferenceServer) -> None:
    with octavo.Client(held.target, timeout=0.2) as client:
        with pytest.raises(octavo.DeadlineExceeded):
            client.generate("a b c")
        with pytest.raises(octavo.DeadlineExceeded):
            client.stream("a b c").result()


def test_generations_are_kept_for_a_while_unless_told_otherwise(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    client.stream("a").result()
    client.stream("a", keep_for_s=0.0).result()
    client.generate("a")
    client.generate("a", keep_for_s=0.0)
    kept = [one.scheduling.keep_for_s for one in server.generations]
    assert kept == [30.0, 0.0, 30.0, 0.0]


def test_a_stream_dropped_in_a_cycle_is_cancelled_by_the_garbage_collector(
    client: octavo.Client, held: FakeInferenceServer
) -> None:
    stream = client.stream("a b c", request_id="in-a-cycle")
    next(stream)
    cycle: list[object] = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    assert held.wait_for_cancel("in-a-cycle")


def test_a_client_closed_during_a_call_says_so(held: FakeInferenceServer) -> None:
    client = octavo.Client(held.target)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.generate, "a", request_id="r")
        assert held.wait_for_hold("r")
        client.close()
        with pytest.raises(octavo.ClientClosed):
            call.result()


def test_closing_a_client_leaves_no_thread(held: FakeInferenceServer) -> None:
    client = octavo.Client(held.target)
    next(client.stream("a b c"))
    assert "octavo-streams" in {thread.name for thread in threading.enumerate()}
    client.close()
    assert "octavo-streams" not in {thread.name for thread in threading.enumerate()}
