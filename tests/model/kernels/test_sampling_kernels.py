"""The sampling kernels draw the documented noise and choose what the float64 reference chooses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_svc.execution.noise import noise_bits as torch_noise_bits
from worker_svc.execution.noise import noise_keys as torch_noise_keys
from worker_svc.execution.sampling_reference import ReferenceSampling, margin, reference_noise
from worker_svc.kernels.gumbel import gumbel_noise, noise_bits, noise_keys
from worker_svc.kernels.jit import kernel
from worker_svc.kernels.sampling import (
    Candidates,
    ChosenTokens,
    RowSampling,
    best_of_chunks,
    finish,
    gathered,
    shard_best,
)

MARGIN = 1e-4
SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**20)


@kernel()
def write_noise(
    seeds_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    bits_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    num_ids: tl.constexpr,
    padded_ids: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    first, second = noise_keys(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    ids = tl.arange(0, padded_ids)
    offsets = row * num_ids + ids
    bits = noise_bits(first, second, ids).to(tl.int32, bitcast=True)
    tl.store(bits_ptr + offsets, bits, mask=ids < num_ids)
    tl.store(noise_ptr + offsets, gumbel_noise(first, second, ids), mask=ids < num_ids)


def signed(seeds: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))


@settings(max_examples=30)
@given(keys=st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=3))
def test_noise_is_that_of_the_torch_sampler(
    device: torch.device, keys: list[tuple[int, int]]
) -> None:
    # scenario SMP-08
    num_ids = 3001
    seeds = signed([seed for seed, _ in keys])
    positions = torch.tensor([position for _, position in keys], dtype=torch.int32)
    bits = torch.empty(len(keys), num_ids, dtype=torch.int32, device=device)
    noise = torch.empty(len(keys), num_ids, device=device)
    write_noise[(len(keys),)](
        seeds.to(device),
        positions.to(device),
        bits,
        noise,
        num_ids=num_ids,
        padded_ids=triton.next_power_of_2(num_ids),
    )
    ids = torch.arange(num_ids, dtype=torch.int32)
    assert torch.equal(bits.cpu(), torch_noise_bits(torch_noise_keys(seeds, positions), ids))
    for row, (seed, position) in enumerate(keys):
        expected = reference_noise(seed, position, num_ids)
        assert np.abs(noise[row].cpu().double().numpy() - expected).max() < 4e-6


@dataclass(frozen=True, slots=True)
class Wish:
    """What one row asks for."""

    seed: int = 0
    position: int = 1
    temperature: float = 0.0
    min_position: int = 0
    stop_ids: tuple[int, ...] = ()
    slot: int = -1

    def reference(self, num_tokenizer_ids: int) -> ReferenceSampling:
        return ReferenceSampling(
            seed=self.seed,
            position=self.position,
            temperature=self.temperature,
            banned=frozenset(self.stop_ids if self.position < self.min_position else ()),
            num_tokenizer_ids=num_tokenizer_ids,
        )


def sampling_of(wishes: Sequence[Wish], device: torch.device) -> RowSampling:
    widest = max(len(wish.stop_ids) for wish in wishes)
    stop_ids = torch.full((len(wishes), widest), -1, dtype=torch.int32)
    for row, wish in enumerate(wishes):
        stop_ids[row, : len(wish.stop_ids)] = torch.tensor(wish.stop_ids)

    def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return RowSampling(
        temperature=column([wish.temperature for wish in wishes], torch.float32),
        seeds=signed([wish.seed for wish in wishes]).to(device),
        positions=column([wish.position for wish in wishes], torch.int32),
        min_position=column([wish.min_position for wish in wishes], torch.int32),
        stop_ids=stop_ids.to(device),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    tokens: list[int]
    failed: list[bool]
    last_tokens: list[int]


def finished(candidates: Candidates, wishes: Sequence[Wish], device: torch.device) -> Outcome:
    count = len(wishes)
    chosen = ChosenTokens(
        tokens=torch.full((count,), -7, dtype=torch.int32, device=device),
        failed=torch.full((count,), True, device=device),
        slots=torch.tensor([wish.slot for wish in wishes], dtype=torch.int32, device=device),
        last_tokens=torch.full((8,), -9, dtype=torch.int64, device=device),
    )
    finish(candidates, chosen)
    return Outcome(chosen.tokens.tolist(), chosen.failed.tolist(), chosen.last_tokens.tolist())


def choose(
    logits: torch.Tensor, wishes: Sequence[Wish], *, num_tokenizer_ids: int | None = None
) -> Outcome:
    known = logits.shape[1] if num_tokenizer_ids is None else num_tokenizer_ids
    rows = sampling_of(wishes, logits.device)
    candidates = best_of_chunks(logits, rows, first_id=0, num_tokenizer_ids=known)
    return finished(candidates, wishes, logits.device)


def random_logits(
    rows: int, num_ids: int, device: torch.device, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + num_ids)
    return (torch.randn(rows, num_ids, generator=generator) * 3).to(device, dtype)


wishes_strategy = st.builds(
    Wish,
    seed=SEEDS,
    position=st.integers(1, 10_000),
    temperature=st.one_of(st.just(0.0), st.floats(1e-4, 3.0)),
    min_position=st.integers(0, 10_000),
    stop_ids=st.lists(st.integers(0, 299), max_size=3).map(tuple),
)


@settings(max_examples=40)
@given(
    wishes=st.lists(wishes_strategy, min_size=1, max_size=5),
    num_ids=st.integers(1, 5000),
    num_unknown=st.integers(0, 40),
    dtype=st.sampled_from((torch.float32, torch.float16, torch.bfloat16)),
)
def test_each_row_chooses_within_the_margin_of_the_float64_reference(
    device: torch.device,
    wishes: list[Wish],
    num_ids: int,
    num_unknown: int,
    dtype: torch.dtype,
) -> None:
    logits = random_logits(len(wishes), num_ids + num_unknown, device, dtype=dtype)
    logits[:, num_ids:] = 1e4
    outcome = choose(logits, wishes, num_tokenizer_ids=num_ids)
    for row, wish in enumerate(wishes):
        stop_ids = tuple(token for token in wish.stop_ids if token < num_ids)
        reference = replace(wish, stop_ids=stop_ids).reference(num_ids)
        if len(reference.banned) == num_ids:
            assert outcome.failed[row]
            continue
        assert not outcome.failed[row]
        exact = logits[row].double().cpu().numpy()
        assert margin(exact, outcome.tokens[row], reference) < MARGIN


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_whole_vocabulary_is_read(device: torch.device, num_rows: int) -> None:
    logits = random_logits(num_rows, 151_936, device)
    best = [0, 151_935, 77_777][:num_rows]
    for row, token in enumerate(best):
        logits[row, token] = 50.0
    wishes = [Wish(temperature=0.6 * (row % 2), seed=row, slot=row) for row in range(num_rows)]
    outcome = choose(logits, wishes)
    assert outcome.tokens == best
    assert outcome.last_tokens[:num_rows] == best


def test_last_tokens_are_written_for_rows_with_a_slot_only(device: torch.device) -> None:
    # scenario CG-03: a padding row's slot is -1, not the last slot
    logits = random_logits(4, 700, device)
    outcome = choose(logits, [Wish(slot=slot) for slot in (5, -1, 0, -1)])
    expected = [-9] * 8
    expected[5], expected[0] = outcome.tokens[0], outcome.tokens[2]
    assert outcome.last_tokens == expected


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_equal_values_go_to_the_lowest_id(device: torch.device, temperature: float) -> None:
    logits = torch.full((1, 9000), float("-inf"), device=device)
    logits[0, [2500, 2600, 8000]] = 1.0
    outcome = choose(logits, [Wish(temperature=temperature, seed=4)])
    drawn = reference_noise(4, 1, 9000)
    expected = max((2500, 2600, 8000), key=drawn.__getitem__) if temperature else 2500
    assert outcome.tokens == [expected]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_that_is_no_number_fails_alone(
    device: torch.device, broken: float, temperature: float
) -> None:
    # scenario TP-08
    logits = random_logits(3, 4000, device)
    wishes = [Wish(temperature=temperature, seed=row, slot=row) for row in range(3)]
    expected = choose(logits, wishes).tokens
    logits[1, 3333] = broken
    outcome = choose(logits, wishes)
    assert outcome.failed == [False, True, False]
    assert outcome.tokens == [expected[0], 0, expected[2]]
    assert outcome.last_tokens[1] == 0


def test_a_broken_logit_of_an_unknown_id_is_nobodys(device: torch.device) -> None:
    logits = random_logits(1, 500, device)
    logits[0, 400:] = float("nan")
    outcome = choose(logits, [Wish()], num_tokenizer_ids=400)
    assert outcome.failed == [False]
    assert outcome.tokens == [int(logits[0, :400].argmax())]


def test_a_row_left_without_ids_fails_alone(device: torch.device) -> None:
    # scenario EOS-05
    logits = torch.zeros(2, 3, device=device)
    early = Wish(stop_ids=(0, 1, 2), min_position=5)
    outcome = choose(logits, [early, Wish(stop_ids=(0, 1, 2), min_position=5, position=5)])
    assert outcome.failed == [True, False]
    assert outcome.tokens == [0, 0]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_shards_choose_what_the_whole_chooses(device: torch.device, ranks: int) -> None:
    logits = random_logits(3, 2405, device)
    logits[2, 2000] = float("nan")
    wishes = [Wish(), Wish(temperature=1.0, seed=2**63 + 5, position=900), Wish()]
    whole = choose(logits, wishes, num_tokenizer_ids=2400)
    rows, per_rank = sampling_of(wishes, device), -(-2405 // ranks)
    parts = []
    for rank in range(ranks):
        shard = torch.full((3, per_rank), 7e4, device=device)  # beyond the vocabulary: anything
        ours = logits[:, rank * per_rank : (rank + 1) * per_rank]
        shard[:, : ours.shape[1]] = ours
        parts.append(
            shard_best(
                best_of_chunks(shard, rows, first_id=rank * per_rank, num_tokenizer_ids=2400)
            )
        )
    together = finished(gathered(torch.stack(parts)), wishes, device)
    assert together.tokens == whole.tokens
    assert together.failed == whole.failed == [False, False, True]


def test_masked_rows_choose_allowed_ids_only(device: torch.device) -> None:
    logits = random_logits(3, 2000, device)
    logits[:, 1999] = 90.0  # beyond the mask's words: not allowed to masked rows
    words = torch.zeros(1, 60, dtype=torch.int32)
    words[0, 40], words[0, 3] = -(2**31), 5
    rows = sampling_of([Wish(), Wish(temperature=1.0, seed=3), Wish()], device)
    masked = RowSampling(
        temperature=rows.temperature,
        seeds=rows.seeds,
        positions=rows.positions,
        min_position=rows.min_position,
        stop_ids=rows.stop_ids,
        mask_rows=torch.tensor([0, 0, -1], dtype=torch.int32, device=device),
        mask_words=words.to(device),
    )
    candidates = best_of_chunks(logits, masked, first_id=0, num_tokenizer_ids=2000)
    outcome = finished(candidates, [Wish()] * 3, device)
    allowed = [96, 98, 1311]
    assert outcome.tokens[0] == allowed[int(logits[0, allowed].argmax())]
    assert outcome.tokens[1] in allowed
    assert outcome.tokens[2] == 1999
