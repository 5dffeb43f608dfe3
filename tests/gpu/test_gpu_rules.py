"""Rules and records on a device, step by step against the float64 reference of its own logits.

With graphs and without: the reference is that of the logits which the runner itself had, so that
nothing hides behind roundings of the model.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.gpu.device_rig import GPU, GpuRig, decoder_like, qwen3_spec, transformers_model
from tests.gpu.test_gpu_attention import BACKENDS
from tests.model.rigs import Row, random_tokens, resident_step
from tests.model.wishes import Wish, rules
from worker_svc.batch_step import SampledRows, SamplingColumns
from worker_svc.execution.sampling_reference import margin
from worker_svc.slot_rules import SlotRules

VOCAB_SIZE = 1000
NUM_STEPS = 30
# fast logarithms of the noise, sums in another order
MARGIN = 1e-3
LOGPROB_ERROR = 2e-3
TOLD = {"has_logprobs": True, "num_top_logprobs": 5, "vocab_size": VOCAB_SIZE}
PROMPTS = [random_tokens(40 + 9 * slot, seed=slot) for slot in range(6)]
WISHES = [
    Wish(temperature=0.8, seed=5),
    Wish(temperature=0.0),
    Wish(temperature=1.2, seed=2**63 + 9, top_k=50, top_p=0.9),
    Wish(temperature=0.7, seed=8, min_p=0.02),
    Wish(temperature=0.9, seed=1, top_p=0.8),
    Wish(temperature=0.9, seed=2),
]


def rules_for(slot: int, history: Sequence[int]) -> SlotRules:
    """What a slot asks for, with these tokens so far; the last one only wants to be told."""
    prompt = PROMPTS[slot]
    common = {"history": history, "num_prompt_tokens": len(prompt), **TOLD}
    kinds: list[dict[str, object]] = [
        {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": 0.5},
        {"frequency_penalty": 2.0, "bias": {7: 9.0, 8: 8.5, 999: -5.0}},
        {"bad_sequences": [[7], [8, 9], [prompt[-1], 3]], "bias": {7: 30.0, 8: 6.0, 9: 6.0}},
        {"allowed": list(range(0, VOCAB_SIZE, 7)), "presence_penalty": 2.0},
        {"repetition_penalty": 0.6, "bad_sequences": [[n] for n in range(100, 356)]},
        {},
    ]
    return rules(**{**common, **kinds[slot]})  # type: ignore[arg-type] # by name


@torch.inference_mode()
def logits_at(rig: GpuRig, indexes: Sequence[int], *, is_choice: bool = False) -> np.ndarray:
    """Float64 logits after these tokens of the last step, from a product of the runner's shape."""
    sizes = (1, 2, 4, 8)
    size = next(one for one in sizes if one >= len(indexes)) if is_choice else len(indexes)
    padded = [*indexes, *[0] * (size - len(indexes))]
    hidden = rig.assembly.programs.memory.hidden
    where = torch.tensor(padded, dtype=torch.int32, device=GPU)
    logits: np.ndarray = rig.decoder.logits_at(hidden, where).double().cpu().numpy()
    return logits[: len(indexes)]


def columns_of(slots: Sequence[int]) -> SamplingColumns:
    wishes = [WISHES[slot] for slot in slots]
    return replace(
        SamplingColumns.greedy(len(slots)),
        temperature=np.array([one.temperature for one in wishes], np.float32),
        top_k=np.array([one.top_k for one in wishes], np.int32),
        top_p=np.array([one.top_p for one in wishes], np.float32),
        min_p=np.array([one.min_p for one in wishes], np.float32),
        seed=np.array([one.seed for one in wishes], np.uint64),
    )


@pytest.fixture(params=[True, False], ids=["graphs", "eager"])
def rig(request: pytest.FixtureRequest) -> GpuRig:
    spec = qwen3_spec(vocab_size=VOCAB_SIZE)
    backend = BACKENDS[-1].values[0]
    decoder = decoder_like(
        transformers_model(spec, torch.bfloat16), spec, backend=str(backend), most_rows=8
    )
    return GpuRig(decoder, num_blocks=200, most_rows=8, most_tokens=600, uses_graphs=request.param)


class Life:
    """Slots under rules; every outcome is held against the logits that it came from."""

    def __init__(self, rig: GpuRig) -> None:
        self.rig = rig
        self.texts = [list(prompt) for prompt in PROMPTS]
        self.rules = [rules_for(slot, prompt) for slot, prompt in enumerate(PROMPTS)]

    def run(self, rows: list[Row]) -> SampledRows:
        """A step; its tokens join the texts."""
        ends = {r.slot: r.start + (1 if r.tokens is None else len(r.tokens)) for r in rows}
        slots = [row.slot for row in rows]
        step = resident_step(
            rows, new_blocks=self.rig.tables.grow(ends), sampling=columns_of(slots)
        )
        wanted = {row: self.rules[slot] for row, slot in enumerate(slots)}
        sampled = self.rig.run(replace(step, rules=wanted))
        logits = logits_at(self.rig, (np.cumsum(step.num_tokens) - 1).tolist(), is_choice=True)
        assert not sampled.failed.any()
        self.check(slots, logits, sampled)
        for slot, token in zip(slots, sampled.tokens.tolist(), strict=True):
            self.texts[slot].append(token)
        return sampled

    def check(self, slots: Sequence[int], logits: np.ndarray, sampled: SampledRows) -> None:
        words = np.frombuffer(sampled.records.token_records, np.int32).reshape(len(slots), -1)
        for row, (slot, token) in enumerate(zip(slots, sampled.tokens.tolist(), strict=True)):
            text = self.texts[slot]
            seen = replace(
                WISHES[slot], position=len(text), rules=rules_for(slot, text)
            ).reference()
            assert margin(logits[row], token, seen, slack=MARGIN) < MARGIN, (slot, len(text))
            check_record(words[row], logits[row], token)


def check_record(words: np.ndarray, logits: np.ndarray, token: int) -> None:
    floats = words.view(np.float32)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert abs(floats[0] - logprobs[token]) < LOGPROB_ERROR
    assert words[1] == 1 + int((logits > logits[token]).sum())
    num_top = (words.size - 2) // 2
    assert np.allclose(floats[3::2], np.sort(logprobs)[::-1][:num_top], atol=LOGPROB_ERROR)
    assert np.allclose(floats[3::2], logprobs[words[2::2]], atol=LOGPROB_ERROR)


def test_every_choice_and_record_is_the_references(rig: GpuRig) -> None:
    life = Life(rig)
    life.run([Row(slot, 0, prompt) for slot, prompt in enumerate(PROMPTS)])
    for _ in range(NUM_STEPS):
        life.run([Row(slot, len(text) - 1, None) for slot, text in enumerate(life.texts)])
    # a slot that starts again, with what it made, goes on from the same counts
    rig.tables.start(0)
    life.rules[0] = rules_for(0, life.texts[0])
    rows = [Row(slot, len(text) - 1, None) for slot, text in enumerate(life.texts)][1:]
    life.run([*rows, Row(0, 0, life.texts[0])])
    for _ in range(4):
        life.run([Row(slot, len(text) - 1, None) for slot, text in enumerate(life.texts)])
    assert 7 not in life.texts[2][len(PROMPTS[2]) :]
    assert all(token % 7 == 0 for token in life.texts[3][len(PROMPTS[3]) :])


def test_a_step_launched_ahead_counts_the_token_before(rig: GpuRig) -> None:
    one = rules_for(1, PROMPTS[1])
    rows = [[Row(1, 0, PROMPTS[1])], *([Row(1, len(PROMPTS[1]) + at, None)] for at in range(6))]
    tables = [rig.tables.grow({1: len(PROMPTS[1]) + 8}), *(rig.tables.grow({}) for _ in range(6))]
    steps = [
        replace(resident_step(of_step, new_blocks=blocks, sampling=columns_of([1])), rules={0: one})
        for of_step, blocks in zip(rows, tables, strict=True)
    ]
    runner, tokens = rig.assembly.runner, []
    runner.launch(steps[0], received_ns=1)
    for step in steps[1:]:
        runner.launch(step, received_ns=1)
        tokens += runner.collect().rows.tokens.tolist()
    tokens += runner.collect().rows.tokens.tolist()
    # biased ids lead until their penalties have grown past them; the first one is not the second
    assert set(tokens[:2]) == {7, 8}
    assert tokens[2] in {7, 8}
    assert {7, 8} >= set(tokens[:4])


def test_prompts_and_vectors_are_told(rig: GpuRig) -> None:
    prompt = PROMPTS[5]
    told = rules(
        history=prompt,
        num_prompt_tokens=len(prompt),
        vocab_size=VOCAB_SIZE,
        start={"prompt_records_from": 9, "num_prompt_top_logprobs": 2, "pooling": 2},
    )
    states: list[torch.Tensor] = []
    num_told = 0
    for start, end in ((0, 30), (30, len(prompt))):
        row = Row(0, start, prompt[start:end], samples=end == len(prompt))
        step = resident_step([row], new_blocks=rig.tables.grow({0: end}))
        sampled = rig.run(replace(step, rules={0: told}))
        states.append(rig.assembly.programs.memory.hidden[: end - start].float().cpu())
        positions = told.prompt_positions(start, end)
        words = np.frombuffer(sampled.records.prompt_records, np.int32).reshape(-1, 6)
        logits = logits_at(rig, [position - 1 - start for position in positions])
        for of_token, row_logits, position in zip(words, logits, positions, strict=True):
            check_record(of_token, row_logits, prompt[position])
        num_told += len(positions)
        if row.samples:
            assert sampled.tokens.tolist() == [0]
            vector = np.frombuffer(sampled.records.pooled, np.float32)
            mean = torch.cat(states).mean(dim=0).numpy()
            assert np.allclose(vector, mean, atol=1e-3, rtol=1e-3)
    assert num_told == len(prompt) - 9
