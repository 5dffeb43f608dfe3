"""What is taken down, and the numbers made of it."""

import numpy as np
import pytest

from bench.simulator.histogram import Histogram
from bench.simulator.jobs import Conversation, Job, Turn
from bench.simulator.prompts import Segment
from bench.simulator.recorder import Recorder, Window
from bench.simulator.report import ServiceLevel, jain_index, summarize


def arrive(recorder: Recorder, now: float, *, tenant: str = "a", num_prompt: int = 100) -> int:
    turn = Turn((Segment(1, num_prompt),), Segment(2, 10))
    number = recorder.next_number
    job = Job(number, Conversation(now, (turn,), tenant), 0, turn.message)
    recorder.arrive(job, replica=0, now=now)
    return number


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_percentiles_are_right_within_half_a_percent() -> None:
    histogram, times = Histogram(), np.linspace(0.001, 0.1, 200_000)
    histogram.add(times)
    for percent in (1, 50, 99):
        expected = float(np.percentile(times, percent))
        assert histogram.percentile(percent) == pytest.approx(expected, rel=0.005)
    assert histogram.largest_s == 0.1


def test_a_time_counted_several_times_weighs_as_much() -> None:
    histogram = Histogram()
    histogram.add(np.array([0.001]), times=99)
    histogram.add(np.array([1.0]))
    assert len(histogram) == 100
    assert histogram.percentile(98) == pytest.approx(0.001, rel=0.006)
    assert histogram.percentile(100) == pytest.approx(1.0, rel=0.006)


def test_steady_tokens_count_as_if_told_one_by_one() -> None:
    told, jumped = Recorder(window=Window(0.0, 4.5)), Recorder(window=Window(0.0, 4.5))
    moments = np.array([2.0, 3.0, 4.0, 5.0])
    rows = numbers(1, 2)
    for recorder in (told, jumped):
        arrive(recorder, 0.0)
        arrive(recorder, 0.0, tenant="b")
        recorder.tokens(rows, 1.0)
    for moment in moments.tolist():
        told.tokens(rows, moment)
    jumped.steady(rows, moments)
    for recorder in (told, jumped):
        recorder.finish()
    assert len(told.gaps) == len(jumped.gaps) == 6
    assert told.tenants == jumped.tenants
    assert told.tenants["b"].num_generated_tokens == 4
    assert np.array_equal(told.last_s[:3], jumped.last_s[:3], equal_nan=True)
    assert np.array_equal(told.num_tokens[:3], jumped.num_tokens[:3])


def test_only_what_happens_in_the_window_is_measured() -> None:
    recorder = Recorder(window=Window(10.0, 20.0))
    early, late = arrive(recorder, 5.0), arrive(recorder, 12.0)
    recorder.start(early, num_cached=0, now=5.0)
    recorder.start(late, num_cached=60, now=12.0)
    recorder.tokens(numbers(early), 6.0)
    recorder.tokens(numbers(early, late), 13.0)
    summary = summarize(recorder, seconds=10.0)
    assert summary.num_requests == 1
    assert summary.ttft_p50_ms == pytest.approx(1000.0)
    assert summary.hit_rate == 0.6
    assert summary.output_tokens_per_s == 0.2
    assert recorder.tenants["a"].num_prompt_tokens == 40


def test_goodput_counts_requests_within_the_service_level() -> None:
    recorder = Recorder(window=Window(0.0, 10.0))
    for first_s, step_s in ((0.5, 0.02), (2.0, 0.02), (0.5, 0.2)):
        row = numbers(arrive(recorder, 0.0))
        recorder.tokens(row, first_s)
        recorder.steady(row, np.array([first_s + step_s * count for count in range(1, 6)]))
    refused = arrive(recorder, 0.0)
    recorder.refuse(refused, 0.0)
    summary = summarize(recorder, seconds=10.0, level=ServiceLevel(ttft_s=1.0, token_s=0.05))
    assert summary.goodput_per_s == pytest.approx(0.1)
    assert summary.goodput_share == 0.25
    assert summary.num_refused == 1


@pytest.mark.parametrize(
    ("shares", "expected"), [((5, 5), 1.0), ((1, 0, 0, 0), 0.25), ((), 1.0), ((0, 0), 1.0)]
)
def test_jain_index(shares: tuple[float, ...], expected: float) -> None:
    assert jain_index(shares) == pytest.approx(expected)


def test_more_requests_than_first_expected_are_kept() -> None:
    recorder = Recorder()
    for _ in range(3000):
        arrive(recorder, 0.0)
    recorder.tokens(numbers(1, 3000), 1.0)
    assert recorder.first_s[3000] == 1.0
    assert recorder.num_tokens.sum() == 2
