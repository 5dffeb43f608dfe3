"""Rows of sampling wishes against given logits, without a model. Knows no test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.internal.v1 import step_pb2
from tests.fakes.plan_writer import int32s
from tests.model.rigs import CPU
from worker_svc.batch_step import BatchStep, SamplingColumns, TokenMasks
from worker_svc.execution.filters import kept_ids
from worker_svc.execution.logit_edits import SlotHistories, edit_logits
from worker_svc.execution.sampler import Choice, Sampler
from worker_svc.execution.sampling_plan import VocabularyPart, plan_sampling
from worker_svc.execution.sampling_reference import ReferenceSampling
from worker_svc.parallel.group import SingleRank
from worker_svc.slot_rules import SlotRules, read_rules


@dataclass(frozen=True, slots=True)
class Wish:
    """What one row asks for, its token at `position`."""

    seed: int = 0
    position: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_position: int = 0
    stop_ids: tuple[int, ...] = ()
    rules: SlotRules | None = None

    def reference(self) -> ReferenceSampling:
        early = self.position < self.min_position
        return ReferenceSampling(
            **reference_rules(self.rules),
            seed=self.seed,
            position=self.position,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            banned=frozenset(self.stop_ids if early else ()),
        )


def step_of(wishes: Sequence[Wish], masks: TokenMasks | None = None) -> BatchStep:
    count = len(wishes)
    widest = max(len(wish.stop_ids) for wish in wishes)
    stop_ids = np.full((count, widest), -1, np.int32)
    for row, wish in enumerate(wishes):
        stop_ids[row, : len(wish.stop_ids)] = wish.stop_ids
    return BatchStep(
        slots=np.arange(count, dtype=np.int32),
        num_tokens=np.ones(count, np.int32),
        start_positions=np.array([wish.position - 1 for wish in wishes], np.int32),
        is_decode=np.zeros(count, np.bool_),
        samples=np.ones(count, np.bool_),
        token_ids=np.zeros(count, np.int32),
        block_table=np.ones((count, 1), np.int32),
        sampling=SamplingColumns(
            temperature=np.array([wish.temperature for wish in wishes], np.float32),
            top_k=np.array([wish.top_k for wish in wishes], np.int32),
            top_p=np.array([wish.top_p for wish in wishes], np.float32),
            min_p=np.array([wish.min_p for wish in wishes], np.float32),
            seed=np.array([wish.seed for wish in wishes], np.uint64),
            min_position=np.array([wish.min_position for wish in wishes], np.int32),
            stop_ids=stop_ids,
        ),
        masks=masks,
        rules={row: wish.rules for row, wish in enumerate(wishes) if wish.rules is not None},
    )


def rules(
    *,
    history: Sequence[int] = (),
    num_prompt_tokens: int = 0,
    bias: Mapping[int, float] | None = None,
    allowed: Sequence[int] = (),
    bad_sequences: Sequence[Sequence[int]] = (),
    vocab_size: int = 300,
    start: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> SlotRules:
    """What a slot's start asks for, through the message."""
    shifts = dict(sorted((bias or {}).items()))
    message = step_pb2.SlotStart(
        num_prompt_tokens=num_prompt_tokens,
        history=int32s(history),
        sampling=step_pb2.Sampling(
            logit_bias_ids=int32s(shifts),
            logit_bias_values=np.array(list(shifts.values()), np.float32).tobytes(),
            allowed_token_ids=int32s(sorted(allowed)),
            bad_sequence_tokens=int32s(token for one in bad_sequences for token in one),
            bad_sequence_lengths=int32s(len(one) for one in bad_sequences),
            **sampling,
        ),
        **(start or {}),
    )
    made = read_rules(message, vocab_size=vocab_size)
    assert made is not None
    return made


def reference_rules(given: SlotRules | None) -> dict[str, Any]:
    """The same for the reference."""
    if given is None:
        return {}
    allowed = None
    if given.allowed_words.size:
        bits = np.unpackbits(given.allowed_words.view(np.uint8), bitorder="little")
        allowed = frozenset(np.flatnonzero(bits).tolist())
    return {
        "history": tuple(given.history.tolist()),
        "num_prompt_tokens": given.num_prompt_tokens,
        "repetition_penalty": given.repetition_penalty,
        "frequency_penalty": given.frequency_penalty,
        "presence_penalty": given.presence_penalty,
        "bias": dict(zip(given.bias_ids.tolist(), given.bias_values.tolist(), strict=True)),
        "allowed": allowed,
        "bad_sequences": tuple(tuple(one.tolist()) for one in given.bad_sequences),
    }


def choose(
    logits: torch.Tensor,
    wishes: Sequence[Wish],
    *,
    num_tokenizer_ids: int | None = None,
    masks: TokenMasks | None = None,
) -> Choice:
    num_ids = logits.shape[1]
    part = VocabularyPart(
        first_id=0, num_ids=num_ids, num_tokenizer_ids=num_tokenizer_ids or num_ids
    )
    step, logits = step_of(wishes, masks), logits.clone()
    edit_logits(logits, step, SlotHistories(), first_id=0)
    plan = plan_sampling(step, part, device=CPU)
    return Sampler(part=part, group=SingleRank()).sample(logits, plan)


def tokens_of(logits: torch.Tensor, wishes: Sequence[Wish]) -> list[int]:
    choice = choose(logits, wishes)
    assert not bool(choice.failed.any())
    return choice.tokens.tolist()


def random_logits(rows: int, num_ids: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, num_ids, generator=torch.Generator().manual_seed(seed)) * 3


def kept(logits: torch.Tensor, wish: Wish) -> torch.Tensor:
    part = VocabularyPart(0, logits.shape[1], logits.shape[1])
    plan = plan_sampling(step_of([wish]), part, device=CPU)
    assert plan.filtered is not None
    return kept_ids(logits, plan.filtered.noisy.temperature, plan.filtered.filters)
