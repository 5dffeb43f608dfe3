"""A small model served by real processes on this machine's GPUs, streams through it, and blows.

Knows no single fault. Without a GPU everything runs on the CPU, so that the tests can be tried.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
import torch

import octavo
from tests.e2e.replica import Replica
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import TinyModel
from tests.model.rigs import oracle_logits
from worker_svc.execution.sampling_reference import ReferenceSampling, margin

_LOGGER = logging.getLogger(__name__)

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
LIMIT_S = 150.0
DEADLINE_S = 3
WORKER_FLAGS = ["--device", DEVICE, "--max-num-seqs", "32", "--num-kv-blocks", "2400"]
SERVICE_FLAGS = ["--step-deadline-floor", str(DEADLINE_S), "--frontends", "2"]
MODEL = TinyModel(
    family="qwen3",
    hidden_size=128,
    intermediate_size=192,
    num_layers=3,
    num_heads=8,
    head_dim=64,
    max_position_embeddings=4096,
    seed=4,
)
# tokens of each stream before anything happens
NUM_BEFORE = 20
# bfloat16 against float32, in logits that spread over several units
MARGIN = 0.5 if HAS_GPU else 1e-3
# a prompt's only: its row of the head is zero, and so it is never the best
POISON_ID = 3


@dataclass
class Wish:
    """A stream, and what has come of it."""

    index: int
    num_tokens: int
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    is_over: bool = False
    longest_silence_s: float = 0.0

    @property
    def temperature(self) -> float:
        """Greedy and noisy ones by turns."""
        return 0.0 if self.index % 2 else 0.8

    @property
    def params(self) -> octavo.SamplingParams:
        """Goes on to the last token."""
        return octavo.SamplingParams(
            max_tokens=self.num_tokens,
            temperature=self.temperature,
            seed=self.index,
            ignore_eos=True,
        )


def make_wishes(num_streams: int, num_tokens: int) -> list[Wish]:
    """Prompts of many lengths, without the poisoned id."""
    return [
        Wish(
            index,
            num_tokens,
            [10 + (7 * index + j) % (NUM_IDS - 20) for j in range(5 + 9 * index % 80)],
        )
        for index in range(num_streams)
    ]


def read_while(target: str, wishes: Sequence[Wish], blow: Callable[[], None]) -> None:
    """Reads all streams to their ends; `blow` falls once all of them flow and none is over."""
    asyncio.run(_read_while(target, wishes, blow))
    silence = max(wish.longest_silence_s for wish in wishes)
    _LOGGER.info("%d streams ended; longest silence %.1f s", len(wishes), silence)


async def _read_while(target: str, wishes: Sequence[Wish], blow: Callable[[], None]) -> None:
    async with octavo.AsyncClient(target, timeout=LIMIT_S) as client, asyncio.timeout(LIMIT_S):
        readers = [asyncio.create_task(_read(client, wish)) for wish in wishes]
        while any(len(wish.tokens) < NUM_BEFORE for wish in wishes):
            for reader in readers:
                if reader.done():
                    reader.result()
            await asyncio.sleep(0.005)
        assert not any(wish.is_over for wish in wishes), "the streams are too short for a blow"
        await asyncio.to_thread(blow)
        await asyncio.gather(*readers)


async def _read(client: octavo.AsyncClient, wish: Wish) -> None:
    news_at = time.monotonic()
    async for delta in client.stream(wish.prompt, params=wish.params):
        now = time.monotonic()
        wish.longest_silence_s, news_at = max(wish.longest_silence_s, now - news_at), now
        assert delta.first_token_index == len(wish.tokens), "a token repeated or skipped"
        wish.tokens += delta.token_ids
    wish.is_over = True


def tokens_of(target: str, wish: Wish) -> list[int]:
    """One request, whole; raises what the service answers."""
    with octavo.Client(target, timeout=LIMIT_S) as client:
        return list(client.generate(wish.prompt, params=wish.params).token_ids)


def check(reference: torch.nn.Module, wishes: Sequence[Wish]) -> None:
    """Every stream is whole, and each token the best perturbed logit after those before it."""
    worst, num_best, num_tokens = 0.0, 0, 0
    for wish in wishes:
        assert len(wish.tokens) == wish.num_tokens
        logits = oracle_logits(reference, wish.prompt + wish.tokens).double().numpy()
        for index, token in enumerate(wish.tokens):
            position = len(wish.prompt) + index
            sampling = ReferenceSampling(
                seed=wish.index,
                position=position,
                temperature=float(np.float32(wish.temperature)),
                num_tokenizer_ids=NUM_IDS,
            )
            lost = margin(logits[position - 1], token, sampling)
            worst, num_best = max(worst, lost), num_best + (lost <= 0)
            num_tokens += 1
    _LOGGER.info("%d tokens: worst margin %.3f, best %d", num_tokens, worst, num_best)
    assert worst <= MARGIN
    assert num_best > 0.8 * num_tokens
    assert len({tuple(wish.tokens) for wish in wishes}) > len(wishes) // 2


def ranks_of(replica: Replica, module: str = "worker_svc.rank") -> list[psutil.Process]:
    """The rank processes, in their order."""
    found = [process for process in replica.processes() if module in process.cmdline()]
    return sorted(found, key=lambda process: _rank_of(process.cmdline()))


def _rank_of(command: Sequence[str]) -> int:
    [rank] = [int(word.removeprefix("--rank=")) for word in command if word.startswith("--rank=")]
    return rank
