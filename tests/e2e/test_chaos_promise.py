"""With a real model, under blows: every token is the best perturbed logit up to near ties."""

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import octavo
from tests.e2e.blows import KINDS, Blow, blow_of_round, strike
from tests.e2e.calls import Received, generation
from tests.e2e.chaos_run import tracebacks
from tests.e2e.replica import Replica, running_replica
from tests.e2e.test_long import rounds
from tests.e2e.test_promise import MARGIN, worst_margin
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.free_ports import free_ports

NUM_STREAMS = 24
NUM_TOKENS = 160
LIMIT_S = 120.0
FLAGS = ["--cpu-threads", "1", "--step-deadline-floor", "2", "--frontends", "2"]
EVERYDAY = (
    Blow(deed="kill", victim="rank", lasts_s=0.0),
    Blow(deed="kill", victim="core", lasts_s=0.0),
    Blow(deed="lose", victim="replica", lasts_s=0.5),
)
_LOG = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[torch.nn.Module]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


@pytest.fixture
def replicas(model: Path) -> Iterator[list[Replica]]:
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                running_replica(model, flags=[*FLAGS, "--port", str(port)], wait=False)
            )
            for port in free_ports(2)
        ]
        for replica in started:
            replica.wait_ready()
        yield started


async def _read(client: octavo.AsyncClient, prompt: list[int], index: int) -> octavo.Generation:
    return await client.stream(
        prompt,
        max_tokens=NUM_TOKENS,
        temperature=(0.0, 0.7, 1.5)[index % 3],
        seed=2**63 + index,
        ignore_eos=True,
    ).result()


async def _survive(
    replicas: Sequence[Replica], blows: Sequence[Blow], reference: torch.nn.Module
) -> None:
    draw = random.Random(3)
    worst, num_tokens = 0.0, 0
    for number, blow in enumerate(blows):
        prompts = [
            [draw.randrange(NUM_IDS) for _ in range((1, 16, 33)[index % 3])]
            for index in range(NUM_STREAMS)
        ]
        targets = [replica.target for replica in replicas]
        async with octavo.AsyncClient(targets, timeout=LIMIT_S) as client:
            reading = [
                asyncio.create_task(_read(client, prompt, index))
                for index, prompt in enumerate(prompts)
            ]
            await asyncio.sleep(draw.uniform(0.05, 0.5))
            _LOG.info("round %d: %s", number, blow)
            await strike(replicas[0], blow)
            answers = await asyncio.gather(*reading)
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            assert len(answer.token_ids) == NUM_TOKENS
            wanted = generation(
                prompt,
                max_tokens=NUM_TOKENS,
                temperature=(0.0, 0.7, 1.5)[index % 3],
                seed=2**63 + index,
            )
            got = Received(token_ids=list(answer.token_ids))
            worst = max(worst, await asyncio.to_thread(worst_margin, reference, wanted, got))
            num_tokens += NUM_TOKENS
        assert worst <= MARGIN
        for replica in replicas:
            await asyncio.to_thread(replica.wait_ready)
    for replica in replicas:
        assert tracebacks(replica.log()) == []
    _LOG.info("%d blows, %d tokens, worst margin %.1e", len(blows), num_tokens, worst)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_real_model_keeps_the_promise_when_processes_die(
    replicas: list[Replica], reference: torch.nn.Module
) -> None:
    await _survive(replicas, EVERYDAY, reference)


@pytest.mark.long("chaos")
async def test_a_real_model_keeps_the_promise_under_every_blow(
    replicas: list[Replica], reference: torch.nn.Module
) -> None:
    blows = [blow_of_round(11, number) for number in range(rounds(len(KINDS)))]
    await _survive(replicas, blows, reference)
