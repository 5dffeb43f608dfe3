"""Random requests of every mix, each token held against a float64 reference, teacher-forced.

Every token must be within 1e-4 of the reference's best perturbed logit; what is told of it must be
the reference's. The cache is so small that sequences are preempted, and prompts share prefixes.
"""

import logging
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xxhash

from octavo.v1 import inference_pb2 as api
from tests.e2e.calls import CALL_LIMIT_S, connected
from tests.e2e.reference_model import ReferenceModel
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import END_ID, NUM_IDS, byte_tokenizer
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from worker_svc.execution.sampling_reference import ReferenceSampling, margin

_LOGGER = logging.getLogger(__name__)
MODEL = TinyModel(family="qwen3", tied=True)
MARGIN = 1e-4
FLAGS = ["--num-kv-blocks", "24", "--max-num-seqs", "12", "--max-num-batched-tokens", "96"]
AT_ONCE = 24


@dataclass
class Outcome:
    """How far from the reference, at most, and what was met."""

    margin: float = 0.0
    error: float = 0.0  # of log probabilities
    num_tokens: int = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=MODEL)


def drawn(draw: random.Random, shared: Sequence[Sequence[int]]) -> api.Generation:
    """A request of any mix."""

    def maybe(chance: float, value: float) -> float | None:
        return value if draw.random() < chance else None

    prompt = [*draw.choice(shared)[: draw.choice((0, 16, 40))], *ids(draw, draw.randint(1, 20))]
    max_tokens = draw.randint(1, 60)
    sampling = api.SamplingParams(
        temperature=draw.choice((0, 1e-6, 0.3, 0.8, 1, 1.7)),
        seed=draw.choice((0, 2**64 - 1, draw.randrange(2**64))),
        n=draw.choice((1, 1, 1, 2, 3)),
        top_k=draw.choice((None, -1, 1, 5, 40, 10**6)),
        top_p=maybe(0.4, draw.choice((0.0, 0.3, 0.9, 0.999))),
        min_p=maybe(0.3, draw.choice((0.01, 0.2))),
        repetition_penalty=maybe(0.3, draw.choice((0.6, 1.1, 1.8))),
        frequency_penalty=maybe(0.3, draw.uniform(-2, 2)),
        presence_penalty=maybe(0.3, draw.uniform(-2, 2)),
    )
    if draw.random() < 0.3:
        for token in ids(draw, 6):
            sampling.logit_bias[token] = draw.choice((-100, draw.uniform(-5, 5), 3))
    if draw.random() < 0.2:
        sampling.allowed_token_ids.extend(ids(draw, 60))
    if draw.random() < 0.3:
        sampling.bad_words.extend(chr(draw.randrange(33, 120)) * draw.choice((1, 2)) for _ in "abc")
    output = api.OutputParams(
        top_logprobs=maybe(0.5, draw.choice((0, 3))),  # type: ignore[arg-type] # an int
        prompt_top_logprobs=maybe(0.3, 2),  # type: ignore[arg-type] # likewise
    )
    return api.Generation(
        prompt=api.Prompt(token_ids=api.TokenIds(ids=prompt)),
        sampling=sampling,
        stopping=api.StoppingParams(
            max_tokens=max_tokens,
            min_tokens=draw.randint(0, max_tokens),
            ignore_eos=draw.random() < 0.3,
            stop_token_ids=ids(draw, draw.choice((0, 0, 12))),
        ),
        output=output,
    )


def ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(256) for _ in range(count)]


def check(
    reference: ReferenceModel, wanted: api.Generation, answer: api.GenerateUnaryResponse
) -> Outcome:
    """Raises AssertionError for a token that the reference would not choose."""
    outcome = Outcome()
    prompt = list(wanted.prompt.token_ids.ids)
    for output in answer.outputs:
        tokens = list(output.token_ids)
        assert tokens, output.finish
        logits = reference.logits([*prompt, *tokens])
        for index, token in enumerate(tokens):
            position = len(prompt) + index
            rules = rules_of(wanted, [*prompt, *tokens[:index]], output.index)
            found = margin(logits[position - 1], token, rules)
            assert found < MARGIN, (position, token, found, wanted)
            outcome.margin = max(outcome.margin, found)
        outcome.num_tokens += len(tokens)
        told = list(output.logprobs)
        assert len(told) == (len(tokens) if wanted.output.HasField("top_logprobs") else 0)
        check_told(outcome, told, tokens, logits[len(prompt) - 1 :], wanted.output.top_logprobs)
    if wanted.output.HasField("prompt_top_logprobs"):
        logits = reference.logits(prompt)
        num_top = wanted.output.prompt_top_logprobs
        assert len(answer.prompt_logprobs) == len(prompt) - 1
        check_told(outcome, list(answer.prompt_logprobs), prompt[1:], logits, num_top)
    return outcome


def check_told(
    outcome: Outcome,
    told: Sequence[api.TokenLogprob],
    tokens: Sequence[int],
    logits: np.ndarray,
    num_top: int,
) -> None:
    for one, token, row in zip(told, tokens, logits, strict=False):
        assert one.token_id == token
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        best = np.sort(logprobs)[::-1][:num_top]
        errors = [abs(one.logprob - logprobs[token])]
        errors += [abs(a.logprob - logprobs[a.token_id]) for a in one.top]
        errors += [abs(a.logprob - b) for a, b in zip(one.top, best, strict=True)]
        outcome.error = max(outcome.error, *errors)
        assert outcome.error < 1e-3
        higher = int((logprobs > logprobs[token] + 1e-4).sum())
        as_high = int((logprobs > logprobs[token] - 1e-4).sum())
        assert higher < one.rank <= as_high


def rules_of(wanted: api.Generation, history: list[int], index: int) -> ReferenceSampling:
    """How the next token is chosen."""
    sampling, stopping = wanted.sampling, wanted.stopping
    num_prompt = len(wanted.prompt.token_ids.ids)
    seed = sampling.seed
    if index:
        place = seed.to_bytes(8, "little") + index.to_bytes(4, "little")
        seed = xxhash.xxh3_64_intdigest(place)
    ends = {*stopping.stop_token_ids, *(() if stopping.ignore_eos else (END_ID,))}
    is_early = len(history) < num_prompt + stopping.min_tokens

    def value(name: str, default: float) -> float:
        return getattr(sampling, name) if sampling.HasField(name) else default  # type: ignore[arg-type] # by name

    words = [form for word in sampling.bad_words for form in (word, f" {word}")]
    tokenizer = byte_tokenizer()
    return ReferenceSampling(
        seed=seed,
        position=len(history),
        temperature=sampling.temperature,
        top_k=max(sampling.top_k, 0),
        top_p=value("top_p", 1.0),
        min_p=sampling.min_p,
        banned=frozenset(ends if is_early else ()),
        num_tokenizer_ids=NUM_IDS,
        history=tuple(history),
        num_prompt_tokens=num_prompt,
        repetition_penalty=value("repetition_penalty", 1.0),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        bias=dict(sampling.logit_bias),
        allowed=frozenset(sampling.allowed_token_ids) or None,
        bad_sequences=tuple(tuple(tokenizer.encode(one).ids) for one in words),
    )


def run(folder: Path, count: int, *, seed: int) -> None:
    """So many requests, many at once."""
    draw = random.Random(seed)
    shared = [ids(draw, 64) for _ in range(3)]
    wanted = [drawn(draw, shared) for _ in range(count)]
    reference = ReferenceModel(MODEL)
    with running_replica(folder, flags=FLAGS) as replica, connected(replica.target) as stub:

        def ask(one: api.Generation) -> api.GenerateUnaryResponse:
            request = api.GenerateUnaryRequest(generation=one)
            return stub.GenerateUnary(request, timeout=CALL_LIMIT_S)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(ask, wanted))
        # readings come once a second
        wait_until(
            lambda: num_preemptions(replica) > 0,
            limit_s=10,
            otherwise=lambda: "memory was not short",
        )
    outcomes = [check(reference, one, answer) for one, answer in zip(wanted, answers, strict=True)]
    _LOGGER.info(
        "%d tokens, margin at most %.1e, log probabilities within %.1e",
        sum(one.num_tokens for one in outcomes),
        max(one.margin for one in outcomes),
        max(one.error for one in outcomes),
    )
    assert any(answer.usage.cached_tokens for answer in answers), "no prefix was shared"


def num_preemptions(replica: Replica) -> float:
    lines = replica.get("/metrics")[1].splitlines()
    counts = [line for line in lines if line.startswith("octavo_num_preemptions_total")]
    return sum(float(line.split()[-1]) for line in counts)


def test_every_token_is_the_references(folder: Path) -> None:
    run(folder, 100, seed=1)


@pytest.mark.long("reference")
@pytest.mark.parametrize("seed", range(2, 6))
def test_two_thousand_requests_are_the_references(folder: Path, seed: int) -> None:
    run(folder, 500, seed=seed)
