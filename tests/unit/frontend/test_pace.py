"""What one stream adds to the readings, whatever its end."""

from __future__ import annotations

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.pace import Pace
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.traffic import Traffic

ARRIVED, SUBMITTED = 100.0, 100.25


def chunk(num_tokens: int) -> api.StreamChunk:
    delta = api.OutputDelta(token_ids=range(num_tokens))
    return api.StreamChunk(outputs=[delta])


def record(*, queued_s: float | None = 0.25) -> RequestRecord:
    made = RequestRecord(engine.Submit(request_id="mine"), now=SUBMITTED)
    made.queued_s = queued_s
    return made


def sums(traffic: Traffic) -> dict[str, tuple[int, float]]:
    """Count and sum of each histogram with observations."""
    return {
        reading.name: (sum(reading.histogram.counts), reading.histogram.sum)
        for reading in traffic.render()
        if reading.HasField("histogram")
    }


def stalls(traffic: Traffic) -> dict[str, float]:
    readings = [reading for reading in traffic.render() if reading.name == "stream_stalls"]
    return {reading.labels[0]: reading.counter for reading in readings}


async def test_a_requests_time_is_divided_into_its_parts() -> None:
    traffic = Traffic()
    pace = Pace(traffic, record(), arrived_at=ARRIVED)
    for at, num_tokens in ((101.0, 1), (101.5, 2), (101.75, 0)):
        pace.note_made(now=at)
        pace.note_taken(chunk(num_tokens), now=at)
    pace.note_end(now=102.0)
    assert sums(traffic) == {
        "time_to_first_token_seconds": (1, 1.0),
        "request_prefill_time_seconds": (1, 0.5),
        "inter_token_latency_seconds": (1, 0.25),
        "request_decode_time_seconds": (1, 0.5),
        "e2e_request_latency_seconds": (1, 2.0),
    }
    assert pace.first_token_s == 1.0


async def test_first_tokens_are_counted_for_requests_that_produced_one() -> None:
    """Scenario MET-02: a request that ends before counts with its end only."""
    traffic = Traffic()
    pace = Pace(traffic, record(queued_s=None), arrived_at=ARRIVED)
    pace.note_end(now=101.0)
    assert sums(traffic) == {"e2e_request_latency_seconds": (1, 1.0)}
    assert pace.first_token_s is None


async def test_a_stream_that_goes_on_is_not_a_request_again() -> None:
    traffic = Traffic()
    pace = Pace(traffic, record(), arrived_at=None)
    for at in (101.0, 101.5):
        pace.note_made(now=at)
        pace.note_taken(chunk(1), now=at)
    pace.note_end(now=102.0)
    assert sums(traffic) == {"inter_token_latency_seconds": (1, 0.5)}


async def test_stalls_are_told_apart_by_who_stood_still() -> None:
    traffic = Traffic()
    pace = Pace(traffic, record(), arrived_at=ARRIVED)
    pace.note_made(now=150.0)  # the first token may take its time
    pace.note_taken(chunk(1), now=150.0)
    pace.note_made(now=150.9)
    pace.note_taken(chunk(1), now=150.9)
    assert stalls(traffic) == {}
    pace.note_made(now=152.0)
    pace.note_taken(chunk(1), now=152.0)
    pace.note_made(now=152.1)
    pace.note_taken(chunk(1), now=155.0)
    assert stalls(traffic) == {"service": 1, "client": 1}
