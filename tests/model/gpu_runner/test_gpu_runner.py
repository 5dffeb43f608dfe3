"""The GPU runner's steps give what the CPU runner's give, whatever they hold."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.fakes.slot_tables import SlotTables
from tests.model.gpu_runner.gpu_rigs import (
    MAX_TOKENS,
    NUM_POSITIONS,
    NUM_SLOTS,
    Pair,
    new_tables,
)
from tests.model.rigs import Row, random_tokens, resident_step
from worker_svc.batch_step import BatchStep, SampledRows, SamplingColumns, TokenMasks

# padding rows of a forward pass hold what lay in memory, and may overflow
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODEL = TinyModel(family="qwen3", tied=True, max_position_embeddings=NUM_POSITIONS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=MODEL)


@pytest.fixture(params=[True, False], ids=["graphs", "eager"])
def pair(folder: Path, request: pytest.FixtureRequest) -> Pair:
    return Pair(folder, uses_graphs=request.param, num_tokenizer_ids=NUM_IDS)


class Life:
    """Sequences that come, go on and go, at random; every step runs on both sides."""

    def __init__(self, pair: Pair, *, seed: int) -> None:
        self.pair = pair
        self.tables = new_tables()
        self.draw = np.random.default_rng(seed)
        self.filters = False
        self.ends: dict[int, int] = {}  # slot -> next position
        self.left: dict[int, list[int]] = {}  # slot -> prompt tokens still to come
        self.sampling = {slot: self._sampling() for slot in range(NUM_SLOTS)}

    def step(self) -> BatchStep:
        """The next one: decode rows first, then chunks."""
        budget, singles, chunks = MAX_TOKENS, [], []
        for slot in self.draw.permutation(NUM_SLOTS).tolist():
            if slot in self.ends and not self.left[slot]:
                if self.ends[slot] < NUM_POSITIONS - 1 and self.draw.random() < 0.85:
                    singles.append(Row(slot, self.ends[slot], None))
                    continue
                if self.draw.random() < 0.5:
                    continue
            if slot not in self.ends or not self.left[slot]:
                if self.draw.random() < 0.3:
                    continue
                self._start(slot)
            size = min(len(self.left[slot]), budget - NUM_SLOTS, int(self.draw.integers(1, 40)))
            if size <= 0:
                continue
            tokens, self.left[slot] = self.left[slot][:size], self.left[slot][size:]
            chunks.append(Row(slot, self.ends[slot], tokens, samples=not self.left[slot]))
            budget -= size
        return self._built([*singles, *chunks])

    def _built(self, rows: list[Row]) -> BatchStep:
        for row in rows:
            self.ends[row.slot] = row.start + (1 if row.tokens is None else len(row.tokens))
        new_blocks = self.tables.grow({row.slot: self.ends[row.slot] for row in rows})
        sampling = SamplingColumns(
            *(
                np.concatenate([getattr(self.sampling[row.slot], name) for row in rows])
                for name in SamplingColumns.__dataclass_fields__
            )
        )
        return resident_step(rows, new_blocks=new_blocks, sampling=sampling)

    def _start(self, slot: int) -> None:
        self.tables.start(slot)
        self.ends[slot] = 0
        self.left[slot] = random_tokens(int(self.draw.integers(1, 60)), seed=slot)
        self.sampling[slot] = self._sampling()

    def _sampling(self) -> SamplingColumns:
        is_filtered = self.filters and self.draw.random() < 0.5
        one = SamplingColumns.greedy(1)
        return replace(
            one,
            temperature=np.array([self.draw.choice([0.0, 0.7, 1.3])], np.float32),
            seed=self.draw.integers(0, 1 << 63, 1).astype(np.uint64) * 2 + 1,
            top_k=np.array([self.draw.choice([0, 5]) if is_filtered else 0], np.int32),
            top_p=np.array([self.draw.choice([0.8, 1.0]) if is_filtered else 1.0], np.float32),
            min_p=np.array([self.draw.choice([0.0, 0.05]) if is_filtered else 0.0], np.float32),
            min_position=np.array([self.draw.integers(0, 60)], np.int32),
            stop_ids=self.draw.integers(0, NUM_IDS, (1, 3)).astype(np.int32),
        )


def assert_same(expected: SampledRows, found: SampledRows) -> None:
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.failed.tolist() == expected.failed.tolist()


def test_any_life_of_sequences_gives_the_same_tokens_and_the_same_cache(pair: Pair) -> None:
    pair.programs.get_ready()
    assert not any(bool(layer.keys.any()) for layer in pair.cache.layers), "padding was stored"
    life = Life(pair, seed=3)
    num_tokens = 0
    for number in range(16):
        life.filters = number > 8
        step = life.step()
        if step.slots.size == 0:
            continue
        expected, found = pair.run(step, life.tables.table)
        assert_same(expected, found)
        assert not found.failed.any()
        num_tokens += found.tokens.size
    assert num_tokens > 30
    for ours, theirs in zip(pair.cache.layers, pair.plain_cache.layers, strict=True):
        torch.testing.assert_close(ours.keys[1:], theirs.keys[1:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.values[1:], theirs.values[1:], rtol=1e-4, atol=1e-4)
        assert not bool(ours.keys[0].any()), "the trash block is nobody's"


def prefill(pair: Pair, tables: SlotTables, prompts: dict[int, list[int]]) -> SampledRows:
    """One step that takes whole prompts in, as both runners see it."""
    rows = [Row(slot, 0, prompt) for slot, prompt in prompts.items()]
    new_blocks = tables.grow({slot: len(prompt) + 1 for slot, prompt in prompts.items()})
    expected, found = pair.run(resident_step(rows, new_blocks=new_blocks), tables.table)
    assert_same(expected, found)
    return found


def test_two_steps_are_under_way_and_come_back_in_order(pair: Pair) -> None:
    tables = new_tables()
    prompt = random_tokens(20)
    first = resident_step([Row(2, 0, prompt)], new_blocks=tables.grow({2: 24}))
    none = tables.grow({})
    second = resident_step([Row(2, 20, None)], new_blocks=none)
    third = resident_step([Row(2, 21, None)], new_blocks=none)
    expected = [
        pair.plain.execute(replace(step, block_table=tables.table[step.slots])).tokens.tolist()
        for step in (first, second, third)
    ]
    pair.runner.launch(first, received_ns=1)
    pair.runner.launch(second, received_ns=2)
    found = [pair.runner.collect().rows.tokens.tolist()]
    pair.runner.launch(third, received_ns=3)
    found += [pair.runner.collect().rows.tokens.tolist() for _ in range(2)]
    assert found == expected
    assert not pair.runner.is_done()


def test_a_step_without_a_choice_gives_no_token(pair: Pair) -> None:
    tables = new_tables()
    step = resident_step(
        [Row(0, 0, random_tokens(10), samples=False)], new_blocks=tables.grow({0: 10})
    )
    expected, found = pair.run(step, tables.table)
    assert found.tokens.shape == expected.tokens.shape == (0,)


def test_blocks_come_early_in_numbers_and_to_slots_that_sit_out(pair: Pair) -> None:
    tables = new_tables()
    prefill(pair, tables, {0: random_tokens(15), 1: random_tokens(9, seed=1)})
    # both slots get several blocks, only one has a row: more than a decode program takes along
    step = resident_step([Row(0, 15, None)], new_blocks=tables.grow({0: 60, 1: 60}))
    assert_same(*pair.run(step, tables.table))
    for position in range(16, 20):
        rows = [Row(0, position, None), Row(1, position - 7, None)]
        assert_same(*pair.run(resident_step(rows, new_blocks=tables.grow({})), tables.table))


def test_a_failed_row_disturbs_no_other(pair: Pair) -> None:
    # scenario TP-08
    tables = new_tables()
    prefill(pair, tables, {slot: random_tokens(20, seed=slot) for slot in range(3)})
    block = int(tables.table[1, 0])
    for cache in (pair.cache, pair.plain_cache):
        cache.layers[0].values[block, 3, 0, 0] = torch.nan
    for position in (20, 21):  # the second decodes from a failed row's token
        rows = [Row(slot, position, None) for slot in range(3)]
        step = resident_step(rows, new_blocks=tables.grow({0: 22, 1: 22, 2: 22}))
        expected, found = pair.run(step, tables.table)
        assert_same(expected, found)
        assert found.failed.tolist() == [False, True, False]


def with_masks(step: BatchStep, rows: list[int], allowed: list[list[int]]) -> BatchStep:
    words = np.zeros((len(rows), -(-MODEL.vocab_size // 32)), np.int32)
    for row, ids in enumerate(allowed):
        for token in ids:
            words[row].view(np.uint32)[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return replace(step, masks=TokenMasks(np.array(rows, np.int32), words))


def test_masked_rows_choose_among_what_is_allowed(pair: Pair) -> None:
    tables = new_tables()
    prefill(pair, tables, {slot: random_tokens(5, seed=slot) for slot in range(3)})
    rows = [Row(slot, 5, None) for slot in range(3)]
    step = resident_step(rows, new_blocks=tables.grow({}))
    step = with_masks(step, [0, 2], [[7, 40], [99]])
    expected, found = pair.run(step, tables.table)
    assert_same(expected, found)
    assert found.tokens[0] in {7, 40}
    assert found.tokens[2] == 99
    none = with_masks(resident_step([Row(0, 6, None)], new_blocks=tables.grow({})), [0], [[]])
    assert_same(*pair.run(none, tables.table))


def test_a_row_may_have_more_early_stop_ids_than_columns(pair: Pair) -> None:
    tables = new_tables()
    prefill(pair, tables, {0: random_tokens(5), 1: random_tokens(5, seed=1)})
    sampling = replace(
        SamplingColumns.greedy(2),
        min_position=np.array([40, 0], np.int32),
        stop_ids=np.arange(NUM_IDS - 1, dtype=np.int32)[None].repeat(2, axis=0),
    )
    rows = [Row(0, 5, None), Row(1, 5, None)]
    step = resident_step(rows, new_blocks=tables.grow({}), sampling=sampling)
    expected, found = pair.run(step, tables.table)
    assert_same(expected, found)
    assert found.tokens[0] == NUM_IDS - 1, "all others are stop ids"
    assert_same(*pair.run(with_masks(step, [0], [[3, NUM_IDS - 1]]), tables.table))


def test_a_new_epoch_starts_from_nothing(pair: Pair) -> None:
    tables = new_tables()
    before = prefill(pair, tables, {0: random_tokens(20), 3: random_tokens(7, seed=1)})
    pair.runner.begin_epoch()
    again = prefill(pair, new_tables(), {0: random_tokens(20), 3: random_tokens(7, seed=1)})
    assert again.tokens.tolist() == before.tokens.tolist()


def test_common_work_is_recorded_once_and_rare_work_is_announced(folder: Path) -> None:
    pair = Pair(folder, uses_graphs=True, num_tokenizer_ids=NUM_IDS)
    tables = new_tables()
    prefill(pair, tables, {0: random_tokens(5)})
    step = resident_step([Row(0, 5, None)], new_blocks=tables.grow({}))
    assert pair.runner.time_limit_ms(step) > 10_000, "its graph must be recorded first"
    assert_same(*pair.run(step, tables.table))
    assert (pair.device.num_recorded, pair.device.num_replays) == (1, 1)
    later = resident_step([Row(0, 6, None)], new_blocks=tables.grow({}))
    assert pair.runner.time_limit_ms(later) < 1_000
    assert_same(*pair.run(later, tables.table))
    assert (pair.device.num_recorded, pair.device.num_replays) == (1, 2)


def test_timing_is_of_the_step_itself(pair: Pair) -> None:
    tables = new_tables()
    step = resident_step([Row(0, 0, [1, 2])], new_blocks=tables.grow({0: 2}))
    received_ns = time.monotonic_ns() - 5_000_000
    pair.runner.launch(step, received_ns=received_ns)
    timing = pair.runner.collect().timing
    assert timing.forward_us > 0
    assert timing.queued_us >= 4_000
