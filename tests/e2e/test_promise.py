"""With a real model, in every mode, each token is the best perturbed logit up to near ties."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo.v1 import inference_pb2 as api
from tests.e2e.calls import Received, generation, stream_all
from tests.e2e.replica import running_replica
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from worker_svc.execution.sampling_reference import ReferenceSampling, margin

MARGIN = 1e-4
NUM_PROMPTS = 32
MODES: dict[str, list[str]] = {
    "plain": [],
    "no-prefix-cache": ["--no-prefix-cache"],
    "one-step-in-flight": ["--max-steps-in-flight", "1"],
    "chunks-of-7": ["--max-prefill-chunk-tokens", "7"],
    "tiny-cache": ["--num-kv-blocks", "36"],
    "two-ranks": ["--tensor-parallel-size", "2"],
    "two-ranks-tiny-cache": ["--tensor-parallel-size", "2", "--num-kv-blocks", "36"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_tiny_checkpoint(folder, family="qwen3")


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[torch.nn.Module]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


def _requests() -> list[api.Generation]:
    """Greedy and seeded ones; half of the prompts share a beginning of three blocks."""
    draw = random.Random(11)
    shared = [draw.randrange(NUM_IDS) for _ in range(48)]
    requests = []
    for index in range(NUM_PROMPTS):
        own = [draw.randrange(NUM_IDS) for _ in range((1, 15, 16, 17, 33, 70)[index % 6])]
        prompt = shared + own if index % 2 else own
        temperature = (0.0, 0.7, 1.5)[index % 3]
        requests.append(
            generation(prompt, max_tokens=24, temperature=temperature, seed=2**63 + index)
        )
    return requests


def worst_margin(
    reference: torch.nn.Module,
    request: api.Generation,
    got: Received,
    *,
    allowed: Sequence[frozenset[int]] | None = None,
) -> float:
    """How far a token's perturbed logit lies below the best one, teacher-forced.

    `allowed` are the ids that a form leaves for each token.
    """
    prompt = list(request.prompt.token_ids.ids)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + got.token_ids])).logits[0].double().numpy()
    worst = 0.0
    for index, token in enumerate(got.token_ids):
        position = len(prompt) + index
        sampling = ReferenceSampling(
            seed=request.sampling.seed,
            position=position,
            temperature=float(np.float32(request.sampling.temperature)),
            num_tokenizer_ids=NUM_IDS,
            allowed=None if allowed is None else allowed[index],
        )
        worst = max(worst, margin(logits[position - 1], token, sampling))
    return worst


@pytest.mark.parametrize("mode", MODES)
def test_every_token_is_the_best_perturbed_logit(
    mode: str, model: Path, reference: torch.nn.Module
) -> None:
    requests = _requests()
    with running_replica(model, flags=["--cpu-threads", "1", *MODES[mode]]) as replica:
        outputs = stream_all(replica.target, requests)
    assert [len(output.token_ids) for [output] in outputs] == [24] * NUM_PROMPTS
    assert len({tuple(output.token_ids) for [output] in outputs}) > NUM_PROMPTS // 2
    for request, [output] in zip(requests, outputs, strict=True):
        assert worst_margin(reference, request, output) <= MARGIN
