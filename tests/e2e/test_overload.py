"""Ten times more work than the service can do: what it takes it does, the rest hears no at once.

The long part logs figures: ARGS='-o log_cli=true --log-cli-level=info' shows them.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chaos_run import check_nothing_is_left, quantile
from tests.e2e.open_load import Job, OpenLoad, Outcomes
from tests.e2e.replica import Replica, running_replica
from tests.e2e.test_long import rounds
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint

STEP_S = 0.02
WIDTH = 16
QUEUE = 16
NUM_TOKENS = 32
PRESSURE = 10
CAPACITY_PER_S = WIDTH / (STEP_S * (NUM_TOKENS + 1))
LONG_S = 300
_LOG = logging.getLogger(__name__)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    model = make_tiny_checkpoint(tmp_path / "model", family="qwen3")
    flags = ["--max-num-seqs", str(WIDTH), "--max-queue-requests", str(QUEUE)]
    hash_worker = ["--step-ms", str(1000 * STEP_S), "--max-num-seqs", str(WIDTH)]
    with running_replica(model, flags=flags, hash_worker=hash_worker) as started:
        yield started


def _job(deadline_s: float) -> Job:
    return Job(
        num_prompt_tokens=16, num_tokens=NUM_TOKENS, vocab_size=NUM_IDS, deadline_s=deadline_s
    )


def _check(outcomes: Outcomes) -> None:
    assert outcomes.problems == {}
    assert outcomes.num_wrong == 0
    assert outcomes.num_without_hint == 0
    ended = outcomes.num_whole + outcomes.num_refused + outcomes.num_late
    assert ended == outcomes.num_sent


async def test_a_burst_is_taken_as_far_as_the_queue_reaches_and_the_rest_is_refused(
    replica: Replica,
) -> None:
    load = OpenLoad(replica.target, _job(deadline_s=120.0))
    await load.all_at_once(PRESSURE * (WIDTH + QUEUE))
    await load.close()
    outcomes = load.outcomes
    _check(outcomes)
    assert outcomes.num_late == 0
    # twice the queue for who has less than a share of it, as a lone tenant has
    assert WIDTH <= outcomes.num_whole <= WIDTH + 2 * QUEUE + PRESSURE
    check_nothing_is_left(replica, limit_s=20)


@pytest.mark.long("overload")
async def test_under_ten_times_the_load_what_is_accepted_comes_in_time(replica: Replica) -> None:
    seconds = rounds(LONG_S)
    calm = OpenLoad(replica.target, _job(deadline_s=5.0))
    await calm.at_width(WIDTH, seconds=min(30, seconds), first=1 << 30)
    await calm.close()
    pressed = OpenLoad(replica.target, _job(deadline_s=5.0))
    await pressed.at_rate(PRESSURE * CAPACITY_PER_S, seconds=seconds)
    await pressed.close()
    for name, outcomes in (("calm", calm.outcomes), ("pressed", pressed.outcomes)):
        _check(outcomes)
        _LOG.info(
            "%s: %d sent, %d whole, %d late, %d refused, %.0f tokens/s whole in time; refusal p95 "
            "%.1f ms; first token p50 %.0f ms, p95 %.0f ms; whole p95 %.2f s",
            *(name, outcomes.num_sent, outcomes.num_whole, outcomes.num_late),
            *(outcomes.num_refused, NUM_TOKENS * outcomes.num_whole / outcomes.lasted_s),
            1000 * quantile(outcomes.refusals_s, 0.95),
            *(1000 * quantile(outcomes.first_tokens_s, share) for share in (0.5, 0.95)),
            quantile(outcomes.totals_s, 0.95),
        )
    num_late, num_whole = pressed.outcomes.num_late, pressed.outcomes.num_whole
    assert (num_late, num_whole > 0) == (0, True)
    await asyncio.to_thread(check_nothing_is_left, replica, limit_s=20)
