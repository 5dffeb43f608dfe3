"""Rules and records through the runner for GPUs are those of the CPU's, in any mix of rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.model.gpu_runner.gpu_rigs import NUM_POSITIONS, Pair, new_tables
from tests.model.rigs import Row, random_tokens, resident_step
from tests.model.wishes import rules
from worker_svc.batch_step import BatchStep, SampledRows, SamplingColumns
from worker_svc.slot_rules import SlotRules

# padding rows of a forward pass hold what lay in memory, and may overflow
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODEL = TinyModel(family="qwen3", tied=True, max_position_embeddings=NUM_POSITIONS)
TOLD: dict[str, Any] = {"has_logprobs": True, "num_top_logprobs": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=MODEL)


@pytest.fixture
def pair(folder: Path) -> Pair:
    return Pair(folder, uses_graphs=False, num_tokenizer_ids=NUM_IDS)


def assert_same(expected: SampledRows, found: SampledRows) -> None:
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.failed.tolist() == expected.failed.tolist()
    for name in ("token_records", "prompt_records", "pooled"):
        assert_same_words(getattr(found.records, name), getattr(expected.records, name))


def assert_same_words(found: bytes, expected: bytes) -> None:
    """Integers are equal, numbers nearly."""
    ours, theirs = (np.frombuffer(words, np.int32) for words in (found, expected))
    assert ours.size == theirs.size
    numbers = ours.view(np.float32), theirs.view(np.float32)
    is_close = np.isclose(*numbers, atol=2e-4, rtol=1e-3, equal_nan=True)
    assert np.where(np.abs(theirs) > 1 << 20, is_close, ours == theirs).all()


def drawn_rules(draw: np.random.Generator, prompt: list[int], generated: list[int]) -> SlotRules:
    """Any mix for a slot that starts with these tokens."""
    fields: dict[str, Any] = {"vocab_size": MODEL.vocab_size}
    if draw.random() < 0.6:
        fields["repetition_penalty"] = float(draw.choice([0.7, 1.4]))
    if draw.random() < 0.6:
        fields["frequency_penalty"] = float(draw.choice([-1.5, 0.8]))
        fields["presence_penalty"] = float(draw.choice([0.0, 2.0]))
    if draw.random() < 0.5:
        ids = draw.choice(NUM_IDS, 5, replace=False).tolist()
        fields["bias"] = dict(zip(ids, draw.normal(0, 4, 5).tolist(), strict=True))
    if draw.random() < 0.5:
        fields["bad_sequences"] = [[3], [int(draw.integers(NUM_IDS)), 4], [prompt[-1], 7]]
    if draw.random() < 0.4:
        fields["allowed"] = draw.choice(NUM_IDS, 40, replace=False).tolist()
    if draw.random() < 0.6:
        fields |= {"has_logprobs": True, "num_top_logprobs": int(draw.choice([0, 1, 7]))}
        fields["logprob_token_ids"] = np.array([9, 2, 9], np.int32).tobytes()
    start: dict[str, Any] = {}
    if draw.random() < 0.5 and len(prompt) > 2:
        start = {"prompt_records_from": int(draw.integers(1, len(prompt)))}
        start["num_prompt_top_logprobs"] = int(draw.choice([0, 2]))
    if not fields.get("has_logprobs") and not start:
        fields["has_logprobs"] = True
    return rules(
        history=[*prompt, *generated], num_prompt_tokens=len(prompt), start=start, **fields
    )


class RuledLife:
    """Three slots that start, go on, and start again with what they made; all under rules."""

    def __init__(self, pair: Pair, *, seed: int) -> None:
        self.pair, self.draw = pair, np.random.default_rng(seed)
        self.tables = new_tables()
        self.texts: dict[int, list[int]] = {}
        self.rules: dict[int, SlotRules] = {}
        self.given: dict[int, int] = {}  # tokens that the slot has computed
        self.begun: set[int] = set()  # slots that have sampled since their start
        self.sampling = replace(
            SamplingColumns.greedy(1),
            temperature=np.array([0.9], np.float32),
            top_p=np.array([0.95], np.float32),
        )

    def step(self) -> int:
        """One more on both sides; returns how many tokens came."""
        singles, chunks = [], []
        for slot in range(3):
            if slot not in self.texts or self.draw.random() < 0.12:
                self._start(slot)
            text, given = self.texts[slot], self.given[slot]
            if given == len(text) - 1 and given > 0 and slot in self.begun:
                singles.append(Row(slot, given, None))
            else:
                size = min(len(text) - given, int(self.draw.integers(1, 20)))
                is_last = given + size == len(text)
                chunks.append(Row(slot, given, text[given : given + size], samples=is_last))
        rows = [*singles, *chunks]
        ends = {
            row.slot: row.start + (1 if row.tokens is None else len(row.tokens)) for row in rows
        }
        sampling = SamplingColumns(
            *(
                np.concatenate([self._columns(row.slot, name) for row in rows])
                for name in SamplingColumns.__dataclass_fields__
            )
        )
        built: BatchStep = resident_step(rows, new_blocks=self.tables.grow(ends), sampling=sampling)
        wanted = {row: self.rules[one.slot] for row, one in enumerate(rows)}
        expected, found = self.pair.run(replace(built, rules=wanted), self.tables.table)
        assert_same(expected, found)
        self.given.update(ends)
        tokens = iter(found.tokens.tolist())
        for row in rows:
            if row.samples:
                self.texts[row.slot].append(next(tokens))
                self.begun.add(row.slot)
        return found.tokens.size

    def _columns(self, slot: int, name: str) -> np.ndarray:
        columns = self.sampling if slot else SamplingColumns.greedy(1)
        column: np.ndarray = getattr(columns, name)
        return column if name != "seed" else column + np.uint64(slot)

    def _start(self, slot: int) -> None:
        old = self.texts.get(slot, [])
        prompt = random_tokens(int(self.draw.integers(2, 30)), seed=int(self.draw.integers(99)))
        generated = old[-6:] if self.draw.random() < 0.5 and len(old) > 6 else []
        self.tables.start(slot)
        self.rules[slot] = drawn_rules(self.draw, prompt, generated)
        self.texts[slot], self.given[slot] = [*prompt, *generated], 0
        self.begun.discard(slot)


def test_any_life_under_rules_is_the_same(pair: Pair) -> None:
    life = RuledLife(pair, seed=1)
    # in the interpreter a step of three told rows takes seconds
    assert sum(life.step() for _ in range(8)) > 6


def test_vectors_are_the_same(pair: Pair) -> None:
    tables = new_tables()
    prompts = [random_tokens(30), random_tokens(9, seed=1)]
    asked = [
        rules(num_prompt_tokens=len(p), start={"pooling": 2 - i}) for i, p in enumerate(prompts)
    ]
    first = [Row(0, 0, prompts[0][:20], samples=False)]
    step = resident_step(first, new_blocks=tables.grow({0: 20}))
    assert_same(*pair.run(replace(step, rules={0: asked[0]}), tables.table))
    second = [Row(0, 20, prompts[0][20:]), Row(1, 0, prompts[1])]
    step = resident_step(second, new_blocks=tables.grow({0: 30, 1: 9}))
    expected, found = pair.run(replace(step, rules=dict(enumerate(asked))), tables.table)
    assert_same(expected, found)
    assert found.tokens.tolist() == [0, 0]
    assert len(found.records.pooled) == 2 * 4 * MODEL.hidden_size


def test_a_step_launched_ahead_knows_the_token_before(pair: Pair) -> None:
    tables = new_tables()
    prompt = random_tokens(12)
    wanted = rules(
        history=prompt, num_prompt_tokens=12, presence_penalty=2.0, frequency_penalty=2.0, **TOLD
    )
    none = tables.grow({0: 20})
    rows = [[Row(0, 0, prompt)], *([Row(0, at, None)] for at in (12, 13))]
    steps = [
        replace(
            resident_step(of_step, new_blocks=none if at == 0 else tables.grow({})),
            rules={0: wanted},
        )
        for at, of_step in enumerate(rows)
    ]
    expected = [
        pair.plain.execute(replace(step, block_table=tables.table[step.slots])) for step in steps
    ]
    pair.runner.launch(steps[0], received_ns=1)
    pair.runner.launch(steps[1], received_ns=2)
    assert_same(expected[0], pair.runner.collect().rows)
    pair.runner.launch(steps[2], received_ns=3)
    for sampled in expected[1:]:
        assert_same(sampled, pair.runner.collect().rows)


def test_plain_steps_keep_to_their_recorded_program(folder: Path) -> None:
    pair = Pair(folder, uses_graphs=True, num_tokenizer_ids=NUM_IDS)
    tables = new_tables()
    rows = [Row(0, 0, random_tokens(5))]
    pair.run(resident_step(rows, new_blocks=tables.grow({0: 12})), tables.table)
    ruled = {0: rules(has_logprobs=True)}
    for at, wanted in enumerate(({}, ruled, {})):
        step = resident_step([Row(0, 5 + at, None)], new_blocks=tables.grow({}))
        assert_same(*pair.run(replace(step, rules=wanted), tables.table))
    assert pair.device.num_recorded == 1, "only the plain decode step is recorded"
    assert pair.device.num_replays == 2
