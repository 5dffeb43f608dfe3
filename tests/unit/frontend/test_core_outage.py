"""How long streams were without a core: counted from the first loss to the first token, once."""

from dataclasses import dataclass

from scheduler_svc.frontend.core_outage import CoreOutage
from scheduler_svc.frontend.record import Phase


@dataclass
class Stream:
    """As much of a record as an outage looks at."""

    num_tokens: int = 5
    phase: Phase = Phase.LIVE
    failure: Exception | None = None


def _outage() -> tuple[CoreOutage, list[tuple[str, float]]]:
    observed: list[tuple[str, float]] = []
    return CoreOutage(lambda part, seconds: observed.append((part, seconds))), observed


def test_an_outage_is_counted_in_two_parts_and_once() -> None:
    outage, observed = _outage()
    stream = Stream()
    outage.lost(10.0, [stream])
    stream.num_tokens += 1
    outage.moved(10.5)  # of the core that was there before
    outage.told(11.0, computes=False)
    outage.told(12.0, computes=True)
    outage.told(12.5, computes=True)
    stream.num_tokens += 1
    outage.moved(13.0)
    outage.moved(14.0)
    assert observed == [("core_return", 2.0), ("core_first_token", 1.0)]


def test_a_core_that_dies_again_before_a_token_prolongs_the_outage() -> None:
    outage, observed = _outage()
    stream = Stream()
    outage.lost(10.0, [stream])
    outage.told(11.0, computes=True)
    outage.lost(12.0, [stream])
    outage.told(14.0, computes=True)
    stream.num_tokens += 1
    outage.moved(14.5)
    assert observed == [("core_return", 4.0), ("core_first_token", 0.5)]


def test_tokens_of_streams_that_came_later_say_nothing() -> None:
    outage, observed = _outage()
    stream = Stream()
    outage.lost(10.0, [stream])
    outage.told(11.0, computes=True)
    outage.moved(12.0)
    stream.num_tokens += 1
    outage.moved(12.5)
    assert observed == [("core_return", 1.0), ("core_first_token", 1.5)]


def test_nothing_is_counted_when_no_stream_waited_or_all_have_left() -> None:
    outage, observed = _outage()
    left, failed = Stream(), Stream()
    for streams in ([], [left, failed]):
        outage.lost(10.0, streams)
        outage.told(11.0, computes=True)
        left.phase, failed.failure = Phase.CLOSED, RuntimeError()
        outage.moved(12.0)
        outage.moved(13.0)
    assert observed == []
