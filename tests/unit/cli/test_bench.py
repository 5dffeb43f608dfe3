"""`octavo bench` over a service in this process: what it sends, counts and writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from octavo.bench.outcome import Outcome
from octavo.bench.plots import pictures
from octavo.bench.report import html_report
from octavo.bench.result import Result
from octavo.bench.summary import Objectives, summarize
from octavo.bench.workload import arriving, fixed, nano
from octavo.cli.main import main
from octavo.v1 import inference_pb2 as api
from tests.fakes.inference_server import FakeInferenceServer


class CountingService(FakeInferenceServer):
    """Gives each request its tokens two at a time; refuses every `refuses`-th."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = 0
        self.wanted: list[api.Generation] = []
        self.keys: set[str] = set()

    def GetModelInfo(  # noqa: N802 - the protocol's name
        self, request: api.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> api.GetModelInfoResponse:
        return api.GetModelInfoResponse(
            model="<tiny>", num_tokenizer_ids=50, vocab_size=64, max_sequence_tokens=2048
        )

    def Generate(  # noqa: N802 - the protocol's name
        self, request: api.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[api.GenerateResponse]:
        self.wanted.append(request.generation)
        self.keys |= {str(v) for k, v in context.invocation_metadata() if k == "authorization"}
        if self.refuses and not len(self.wanted) % self.refuses:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        left = request.generation.stopping.max_tokens
        while left:
            delta = api.OutputDelta(token_ids=[7] * min(2, left))
            left -= len(delta.token_ids)
            yield api.GenerateResponse(chunk=api.StreamChunk(outputs=[delta]))


@pytest.fixture
def service() -> Iterator[CountingService]:
    with CountingService() as service:
        yield service


SMALL = ["--workload", "fixed", "--prompt-tokens", "3", "--output-tokens", "5", "--warm-up", "0"]


def run(service: CountingService, folder: Path, *flags: str) -> dict[str, object]:
    """The JSON of a run that succeeds."""
    file = folder / "load.json"
    assert main(["bench", "--target", service.target, *SMALL, *flags, "--json", str(file)]) == 0
    read: dict[str, object] = json.loads(file.read_text())
    return read


@pytest.mark.parametrize("processes", ["1", "2"])
def test_every_request_is_sent_once_and_counted(
    processes: str, service: CountingService, tmp_path: Path
) -> None:
    file = tmp_path / "load.json"
    flags = ["--count", "7", "--clients", "3", "--processes", processes, "--json", str(file)]
    # a process of its own: one that starts others by multiprocessing keeps a helper for good
    command = [sys.executable, "-m", "octavo.cli.main", "bench", "--target", service.target]
    subprocess.run([*command, *SMALL, *flags], check=True, timeout=60)
    found = json.loads(file.read_text())
    assert len(service.wanted) == 7
    prompts = {tuple(one.prompt.token_ids.ids) for one in service.wanted}
    assert len(prompts) == 7
    assert all(len(ids) == 3 and max(ids) < 50 for ids in prompts)
    summary = found["summary"]
    assert isinstance(summary, dict)
    assert (summary["num_requests"], summary["num_completed"]) == (7, 7)
    assert summary["num_output_tokens"] == 35
    assert (summary["errors"], summary["num_good"]) == ({}, 7)


def test_failures_are_counted_by_their_status_and_the_rest_is_measured(
    service: CountingService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.refuses = 3
    found = run(service, tmp_path, "--count", "9", "--rate", "200")
    summary = found["summary"]
    assert isinstance(summary, dict)
    assert summary["errors"] == {"RESOURCE_EXHAUSTED": 3}
    assert summary["num_completed"] == 6
    assert re.search(r"failed: RESOURCE_EXHAUSTED +3", capsys.readouterr().out)


def test_nothing_completed_is_a_failure_of_the_command(
    service: CountingService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.refuses = 1
    assert main(["bench", "--target", service.target, *SMALL, "--count", "2"]) == 1
    assert "0 of 2 completed" in capsys.readouterr().out


def test_warm_up_is_sent_and_not_counted(service: CountingService, tmp_path: Path) -> None:
    found = run(service, tmp_path, "--count", "2", "--warm-up", "3")
    assert len(service.wanted) == 5
    requests = found["requests"]
    assert isinstance(requests, list)
    assert len(requests) == 2


def test_the_key_goes_with_every_call_and_into_no_file(
    service: CountingService, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("very-secret\n")
    run(service, tmp_path, "--count", "2", "--api-key-file", str(tmp_path / "key"))
    assert service.keys == {"Bearer very-secret"}
    assert "very-secret" not in (tmp_path / "load.json").read_text()


def test_pictures_and_a_page_that_needs_nothing_else(
    service: CountingService, tmp_path: Path
) -> None:
    page = tmp_path / "load.html"
    run(service, tmp_path, "--count", "4", "--plots", str(tmp_path / "p"), "--report", str(page))
    for name in ("latency", "timeline"):
        assert (tmp_path / "p" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    html = page.read_text()
    assert html.count('src="data:image/png;base64,') == 2
    assert "&lt;tiny&gt;" in html  # names come from the service
    assert "<tiny>" not in html
    assert re.findall(r'(?:src|href)="(?!data:)', html) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--count", "0"], "must be 1 to 1000000, got '0'"),
        (["--rate", "nan"], "must be above 0"),
        (["--rate", "1", "--clients", "2"], "not allowed with argument"),
        (["--goodput", "speed:3"], "must be TIME:MS with one of ttft, tpot, e2el"),
    ],
)
def test_wrong_flags_are_named(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *flags])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_requests_that_can_never_fit_are_not_sent(
    service: CountingService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--target", service.target, *SMALL[:2], "--output-tokens", "4000"]) == 1
    assert "takes 2048: use --workload fixed with shorter ones" in capsys.readouterr().err
    assert service.wanted == []


def test_waits_for_a_service_that_is_not_there_yet(tmp_path: Path) -> None:
    with CountingService() as service:
        service.fall()
        rising = threading.Timer(1.5, service.rise)
        rising.start()
        run(service, tmp_path, "--count", "1", "--wait", "60")
        rising.join()
    assert len(service.wanted) == 1


def test_no_service_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--target", "127.0.0.1:1"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def outcome(*times: float, due_at: float = 0.0, error: str = "") -> Outcome:
    """A request whose messages, of one token each, came at these times."""
    ones = array("i", [1] * len(times))
    ended_at = times[-1] if times else due_at
    return Outcome(
        num_prompt=10,
        due_at=due_at,
        sent_at=due_at,
        token_times=array("d", times),
        token_counts=ones,
        ended_at=ended_at,
        error=error,
    )


def test_waits_count_from_when_a_request_was_due() -> None:
    """A generator that falls behind must not make the service look better (open loop)."""
    late = outcome(3.0, 3.5, due_at=1.0)
    late.sent_at = 2.5
    found = summarize([late])
    assert (found.ttft_s.p50, found.e2e_s.p50, found.sent_late_s.max) == (2.0, 2.5, 1.5)


def test_goodput_counts_whole_requests_that_keep_every_objective() -> None:
    outcomes = [
        outcome(0.1, 0.2, 0.3),
        outcome(0.9, 1.0, 1.1),  # its first token is late
        outcome(0.1, 1.1, 2.1),  # its tokens are slow
        outcome(0.1, error="UNAVAILABLE"),
    ]
    found = summarize(outcomes, objectives=Objectives(ttft_s=0.5, tpot_s=0.5))
    assert (found.num_good, found.num_completed) == (1, 3)
    assert found.duration_s == 2.1
    assert found.goodput_per_s == pytest.approx(1 / 2.1)


def test_percentiles_are_values_that_were_measured() -> None:
    found = summarize([outcome(float(place)) for place in range(1, 101)])
    assert (found.ttft_s.p50, found.ttft_s.p99, found.ttft_s.max) == (51.0, 99.0, 100.0)
    assert found.tpot_s.max == 0.0  # one token has no time between


def test_workloads_repeat_by_their_seed() -> None:
    assert nano(5, vocab=50, seed=1) == nano(5, vocab=50, seed=1) != nano(5, vocab=50, seed=2)
    lengths = [(len(one.prompt), one.num_tokens) for one in nano(50, vocab=50, seed=1)]
    assert all(100 <= each <= 1024 for pair in lengths for each in pair)
    assert len(set(lengths)) > 40
    timed = arriving(fixed(400, num_prompt=1, num_output=1, vocab=9, seed=0), rate=50.0, seed=3)
    gaps = [b.send_at - a.send_at for a, b in pairwise(timed)]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.2)
    assert min(gaps) < 0.25 / 50 < 2 / 50 < max(gaps)  # at random, not in step


def test_a_load_of_failures_alone_can_be_drawn_and_read() -> None:
    outcomes = [outcome(error="UNAVAILABLE"), outcome(0.5, error="ENDED_EARLY")]
    made = pictures(outcomes)
    result = Result(setup={"model": "m"}, summary=summarize(outcomes), outcomes=outcomes)
    assert "0 of 2 completed" in result.as_text()
    assert "ENDED_EARLY" in html_report(result, made)
