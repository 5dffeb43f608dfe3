"""48 clients of all kinds, two replicas, and blows at random moments: nobody gets another byte.

`make test-long PART=chaos` goes on where its last run stopped. A round is made again with
ARGS='--chaos-seed S --chaos-round N'. Progress and the replicas' logs are in .cache/chaos.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.chaos_run import Progress, check_nothing_is_left, run_rounds, tracebacks
from tests.e2e.crowd import Crowd, calm_answers, make_wishes
from tests.e2e.replica import ROOT, Replica, running_replica
from tests.e2e.test_long import rounds
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens
from tests.free_ports import free_ports

KEPT = ROOT / ".cache" / "chaos"
PROGRESS = KEPT / "progress.json"
FLAGS = ["--step-deadline-floor", "1", "--frontends", "2", "--slow-reader-limit", "2"]
STEP_MS = "20"
EVERYDAY_ROUNDS = 30
LONG_ROUNDS = 500
LONG_LIMIT_S = 2100.0


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[Replica]]:
    model = make_tiny_checkpoint(tmp_path / "model", family="qwen3")
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                running_replica(
                    model,
                    flags=[*FLAGS, "--port", str(port)],  # it must come back where it was
                    hash_worker=["--step-ms", STEP_MS],
                    wait=False,
                )
            )
            for port in free_ports(2)
        ]
        for replica in started:
            replica.wait_ready()
        yield started


async def _survive(
    replicas: list[Replica], progress: Progress, *, num_rounds: int, limit_s: float
) -> None:
    wishes, calm = await calm_answers(replicas[0].target, make_wishes(NUM_IDS))
    for wish, answer in zip(wishes, calm, strict=True):
        tokens = expected_tokens(
            wish.prompt,
            len(answer.outputs[0].token_ids),
            vocab_size=NUM_IDS,
            seed=wish.index,
            temperature=wish.params.temperature or 0.0,
        )
        assert list(answer.outputs[0].token_ids) == tokens
    crowd = Crowd([replica.target for replica in replicas], wishes, calm)
    async with crowd.living():
        await run_rounds(replicas, crowd, progress, num_rounds=num_rounds, limit_s=limit_s)
    try:
        assert crowd.tally.problems == [], f"round {progress.num_rounds}, logs in {KEPT}"
        for replica in replicas:
            check_nothing_is_left(replica, limit_s=60)
            assert tracebacks(replica.log()) == []
            progress.note_log(replica.log())
    finally:
        KEPT.mkdir(parents=True, exist_ok=True)
        for index, replica in enumerate(replicas):
            (KEPT / f"replica-{index}.log").write_text(replica.log(), encoding="utf-8")
    progress.note_crowd(crowd)
    logging.getLogger(__name__).info("%s", progress.summary())


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_nobody_gets_another_byte_whatever_befalls_two_replicas(
    replicas: list[Replica], pytestconfig: pytest.Config
) -> None:
    progress = Progress(seed=pytestconfig.getoption("--chaos-seed"))
    await _survive(replicas, progress, num_rounds=rounds(EVERYDAY_ROUNDS), limit_s=500)
    assert progress.num_rounds == rounds(EVERYDAY_ROUNDS)
    assert progress.num_streams > 2 * len(make_wishes(NUM_IDS))


@pytest.mark.long("chaos")
async def test_nobody_gets_another_byte_in_manyrounds(
    replicas: list[Replica], pytestconfig: pytest.Config
) -> None:
    progress = Progress.read(PROGRESS, seed=pytestconfig.getoption("--chaos-seed"))
    first_round = pytestconfig.getoption("--chaos-round")
    if first_round is not None:
        progress = Progress(seed=progress.seed, num_rounds=first_round)
    num_rounds = progress.num_rounds + 1 if first_round is not None else rounds(LONG_ROUNDS)
    await _survive(replicas, progress, num_rounds=num_rounds, limit_s=LONG_LIMIT_S)
    if first_round is None:
        progress.write(PROGRESS)
    if progress.num_rounds < num_rounds:
        pytest.skip(f"{progress.num_rounds} of {num_rounds} rounds; run it again to go on")
