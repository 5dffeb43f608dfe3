"""With a real model, under blows: every token is the best perturbed logit up to near ties.

Outputs with a form among them: the best of those that the form leaves.
"""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import torch
from transformers import AutoModelForCausalLM

import octavo
from tests.e2e.blows import KINDS, Blow, blow_of_round, strike
from tests.e2e.calls import Received, generation
from tests.e2e.chaos_run import tracebacks
from tests.e2e.forms import Forms
from tests.e2e.replica import Replica, running_replica
from tests.e2e.test_long import rounds
from tests.e2e.test_promise import MARGIN, worst_margin
from tests.fakes.byte_tokenizer import END_ID, NUM_IDS
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
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
SCHEMAS = [
    json.dumps({**each, "x-guidance": {"whitespace_flexible": False}})
    for each in (
        {"type": "array", "items": _NUMBER, "minItems": 20, "maxItems": 30},
        {"type": "array", "items": _NUMBER, "minItems": 90},  # never whole: it is cut
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z ]{20,60}$"},
                "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 9},
                "is_old": {"type": "boolean"},
            },
            "required": ["name", "tags", "is_old"],
            "additionalProperties": False,
        },
    )
]
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


@pytest.fixture(scope="module")
def forms(model: Path) -> Forms:
    return Forms(model, end_id=END_ID)


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


@dataclass(frozen=True)
class Wish:
    """One request: greedy or seeded, every fourth with a form."""

    index: int
    prompt: list[int]

    @property
    def schema(self) -> str | None:
        """Of its form; each meets two temperatures."""
        if self.index % 4 != 3:
            return None
        place = self.index // 4 + self.index // 12
        return SCHEMAS[place % len(SCHEMAS)]

    @property
    def temperature(self) -> float:
        return (0.0, 0.7, 1.5)[self.index % 3]

    @property
    def seed(self) -> int:
        return 2**63 + self.index

    async def ask(self, client: octavo.AsyncClient) -> octavo.Generation:
        """What comes, however often the stream breaks."""
        form = None if self.schema is None else octavo.StructuredOutput(json_schema=self.schema)
        return await client.stream(
            self.prompt,
            max_tokens=NUM_TOKENS,
            temperature=self.temperature,
            seed=self.seed,
            ignore_eos=form is None,
            structured_output=form,
        ).result()

    def check(
        self, answer: octavo.Generation, reference: torch.nn.Module, forms: Forms
    ) -> tuple[float, str]:
        """How far its worst token is from the best, and what it ended with."""
        [output] = answer.outputs
        tokens, reason = list(output.token_ids), output.finish_reason
        if self.schema is not None and reason == octavo.FinishReason.EOS:
            jsonschema.validate(json.loads(output.text), json.loads(self.schema))
        else:
            assert reason == octavo.FinishReason.LENGTH
            assert len(tokens) == NUM_TOKENS
        wanted = generation(
            self.prompt, max_tokens=NUM_TOKENS, temperature=self.temperature, seed=self.seed
        )
        allowed = None if self.schema is None else forms.allowed(self.schema, tokens)
        got = Received(token_ids=tokens)
        worst = worst_margin(reference, wanted, got, allowed=allowed)
        return worst, f"{'free' if self.schema is None else 'JSON'}, {reason.name}"


async def _survive(
    replicas: Sequence[Replica],
    blows: Sequence[Blow],
    reference: torch.nn.Module,
    forms: Forms,
) -> None:
    draw = random.Random(3)
    worst, num_tokens, ends = 0.0, 0, Counter[str]()
    for number, blow in enumerate(blows):
        wishes = [
            Wish(index, [draw.randrange(NUM_IDS) for _ in range((1, 16, 33)[index % 3])])
            for index in range(NUM_STREAMS)
        ]
        targets = [replica.target for replica in replicas]
        async with octavo.AsyncClient(targets, timeout=LIMIT_S) as client:
            reading = [asyncio.create_task(wish.ask(client)) for wish in wishes]
            await asyncio.sleep(draw.uniform(0.05, 0.5))
            _LOG.info("round %d: %s", number, blow)
            await strike(replicas[0], blow)
            answers = await asyncio.gather(*reading)
        for wish, answer in zip(wishes, answers, strict=True):
            margin, end = await asyncio.to_thread(wish.check, answer, reference, forms)
            worst = max(worst, margin)
            num_tokens += len(answer.token_ids)
            ends[end] += 1
        assert worst <= MARGIN
        for replica in replicas:
            await asyncio.to_thread(replica.wait_ready)
    for replica in replicas:
        assert tracebacks(replica.log()) == []
    assert ends["JSON, EOS"]
    assert ends["JSON, LENGTH"]
    _LOG.info(
        "%d blows, %d tokens, worst margin %.1e, %s", len(blows), num_tokens, worst, dict(ends)
    )


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_real_model_keeps_the_promise_when_processes_die(
    replicas: list[Replica], reference: torch.nn.Module, forms: Forms
) -> None:
    await _survive(replicas, EVERYDAY, reference, forms)


@pytest.mark.long("chaos")
async def test_a_real_model_keeps_the_promise_under_every_blow(
    replicas: list[Replica], reference: torch.nn.Module, forms: Forms
) -> None:
    blows = [blow_of_round(11, number) for number in range(rounds(len(KINDS)))]
    await _survive(replicas, blows, reference, forms)
