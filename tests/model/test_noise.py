"""The noise is the documented function of its key, and looks like noise."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker_svc.execution.noise import gumbel_noise, noise_bits, noise_keys
from worker_svc.execution.sampling_reference import reference_noise

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**20)


def keys_of(seeds: list[int], positions: list[int]) -> torch.Tensor:
    bits = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
    return noise_keys(bits, torch.tensor(positions, dtype=torch.int32))


def ids(first: int, last: int) -> torch.Tensor:
    return torch.arange(first, last, dtype=torch.int32)


def mixed(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


@given(seed=SEEDS, position=POSITIONS, token=st.integers(0, 2**18))
def test_bits_follow_the_documented_recipe(seed: int, position: int, token: int) -> None:
    low, high = seed % 2**32, seed >> 32
    first = mixed(position ^ mixed(low ^ mixed(high ^ 0x9E3779B9)))
    second = mixed(position ^ mixed(high ^ mixed(low ^ 0x85EBCA6B)))
    expected = mixed((mixed(token ^ first) + second) % 2**32)
    found = noise_bits(keys_of([seed], [position]), ids(token, token + 1))
    assert int(found[0, 0]) % 2**32 == expected


@given(seed=SEEDS, position=POSITIONS)
def test_noise_equals_the_float64_reference(seed: int, position: int) -> None:
    found = gumbel_noise(keys_of([seed], [position]), ids(0, 3000))[0]
    expected = reference_noise(seed, position, 3000)
    assert np.abs(found.double().numpy() - expected).max() < 2e-6


@given(
    keys=st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=9),
    cut=st.integers(1, 1500),
    row=st.integers(0, 8),
)
def test_noise_is_the_same_bit_for_bit_in_any_batch_and_shard(
    keys: list[tuple[int, int]], cut: int, row: int
) -> None:
    # scenario SMP-08
    seed, position = keys[row % len(keys)]
    seeds, positions = [key[0] for key in keys], [key[1] for key in keys]
    together = gumbel_noise(keys_of(seeds, positions), ids(0, 1501))[row % len(keys)]
    alone = keys_of([seed], [position])
    left, right = gumbel_noise(alone, ids(0, cut)), gumbel_noise(alone, ids(cut, 1501))
    assert torch.equal(together, torch.cat((left[0], right[0])))


def test_noise_is_finite_at_the_ends_of_its_range() -> None:
    noise = gumbel_noise(keys_of(list(range(64)), [1] * 64), ids(0, 50_000))
    assert bool(noise.isfinite().all())
    assert float(noise.min()) >= -2.82
    assert float(noise.max()) <= 21.49


def test_noise_has_the_gumbel_distribution() -> None:
    noise = gumbel_noise(keys_of(list(range(40)), list(range(40))), ids(0, 25_000)).double()
    assert abs(float(noise.mean()) - 0.5772) < 0.005
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.01
    for point in (-1.0, 0.0, 1.0, 3.0, 8.0):
        share = float((noise <= point).double().mean())
        expected = math.exp(-math.exp(-point))
        deviation = math.sqrt(expected * (1 - expected) / noise.numel())
        assert abs(share - expected) < 5 * deviation + 1e-9


def test_neighbouring_keys_give_unrelated_noise() -> None:
    # one row for each: the same key but one position, one seed, one high seed bit away
    pairs = [(5, 10), (5, 11), (6, 10), (5 + 2**32, 10), (5 ^ 2**63, 10)]
    noise = gumbel_noise(keys_of([s for s, _ in pairs], [p for _, p in pairs]), ids(0, 40_000))
    correlation = torch.corrcoef(noise) - torch.eye(len(pairs))
    assert float(correlation.abs().max()) < 0.025
    neighbours = torch.corrcoef(torch.stack((noise[0, :-1], noise[0, 1:])))[0, 1]
    assert abs(float(neighbours)) < 0.025
