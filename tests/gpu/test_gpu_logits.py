"""Logits and tokens on the GPU against transformers: errors measured from float32."""

import logging

import numpy as np
import pytest
import torch

from bench.roofline import MODELS
from tests.gpu.device_rig import (
    GpuRig,
    decoder_like,
    qwen3_spec,
    reference_logits,
    transformers_model,
)
from tests.gpu.test_gpu_attention import BACKENDS
from tests.model.rigs import Row, resident_step
from worker_svc.batch_step import SamplingColumns
from worker_svc.execution.sampling_reference import ReferenceSampling, margin
from worker_svc.models.spec import ModelSpec

_LOGGER = logging.getLogger(__name__)

PROMPT_LENGTHS = (1, 5, 17, 64, 200, 333)
NUM_TOKENS = 24
SPECS = {
    "small": qwen3_spec(layers=4, hidden=512, vocab_size=4000),
    "small tied": qwen3_spec(layers=3, heads=4, kv_heads=4, tied=True),
    "0.6B": MODELS["0.6B"],
}


def prompts(spec: ModelSpec) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [draw.integers(0, spec.vocab_size, length).tolist() for length in PROMPT_LENGTHS]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SPECS)
def test_logits_and_tokens_are_those_of_transformers(name: str, backend: str) -> None:
    spec = SPECS[name]
    exact, rounded = (transformers_model(spec, kind) for kind in (torch.float32, torch.bfloat16))
    decoder = decoder_like(rounded, spec, backend=backend, most_rows=16)
    rig = GpuRig(decoder, num_blocks=200, most_rows=16, most_tokens=1024)
    asked = prompts(spec)

    rows = [Row(slot, 0, prompt) for slot, prompt in enumerate(asked)]
    temperatures = np.array([0.0, 0.6, 1.0, 0.0, 0.6, 1.0], np.float32)
    sampling = SamplingColumns.greedy(len(rows))
    sampling.temperature[:] = temperatures
    sampling.seed[:] = np.arange(len(rows)) + 11
    ends = {slot: len(prompt) for slot, prompt in enumerate(asked)}
    step = resident_step(rows, new_blocks=rig.tables.grow(ends), sampling=sampling)
    outputs = [[token] for token in rig.run(step).tokens.tolist()]

    # the whole step's logits, token by token
    found = rig.logits(sum(PROMPT_LENGTHS))
    expected = torch.cat([reference_logits(exact, prompt) for prompt in asked])
    theirs = torch.cat([reference_logits(rounded, prompt) for prompt in asked])
    error, their_error = relative_error(found, expected), relative_error(theirs, expected)
    _LOGGER.info(
        "%s %s: error %.4f, transformers in bfloat16 %.4f", name, backend, error, their_error
    )
    assert error < 1.2 * their_error + 1e-3
    slack = 4 * float((theirs - expected).square().mean().sqrt())

    for _ in range(NUM_TOKENS - 1):
        rows = [Row(slot, ends[slot], None) for slot in range(len(asked))]
        ends = {slot: end + 1 for slot, end in ends.items()}
        step = resident_step(rows, new_blocks=rig.tables.grow(ends), sampling=sampling)
        sampled = rig.run(step)
        assert not sampled.failed.any()
        for output, token in zip(outputs, sampled.tokens.tolist(), strict=True):
            output.append(token)

    worst = 0.0
    for slot, (prompt, output) in enumerate(zip(asked, outputs, strict=True)):
        logits = reference_logits(exact, prompt + output).double().cpu().numpy()
        for at, token in enumerate(output):
            chosen = ReferenceSampling(
                seed=11 + slot, position=len(prompt) + at, temperature=float(temperatures[slot])
            )
            worst = max(worst, margin(logits[len(prompt) + at - 1], token, chosen))
    _LOGGER.info("%s %s: worst margin %.3f of %.3f logits", name, backend, worst, slack)
    # a choice among close logits may differ; none is further from the best than both can err
    assert worst < 2 * slack
