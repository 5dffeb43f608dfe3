"""The device's filters take out what the CPU's take out, in rows of any kind side by side."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.wishes import Wish, kept
from worker_svc.execution.filter_rows import filter_rows
from worker_svc.execution.packed_columns import SampleColumns
from worker_svc.kernels.sampling import RowSampling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_IDS = 300


def columns_of(wishes: Sequence[Wish], num_ids: int) -> SampleColumns:
    count = len(wishes)
    packed = torch.zeros(SampleColumns.num_words(count, num_stop_ids=4), dtype=torch.int32)
    columns = SampleColumns.of(packed, num_rows=count, num_stop_ids=4)
    columns.clear()
    for row, wish in enumerate(wishes):
        columns.temperature[row] = wish.temperature
        columns.positions[row], columns.min_position[row] = wish.position, wish.min_position
        columns.top_k[row] = wish.top_k if 0 < wish.top_k < num_ids else num_ids
        columns.top_p[row] = wish.top_p
        columns.log_min_p[row] = float(np.log(wish.min_p)) if wish.min_p else -torch.inf
        columns.stop_ids[row, : len(wish.stop_ids)] = torch.tensor(wish.stop_ids)
    return SampleColumns.of(packed.to(DEVICE), num_rows=count, num_stop_ids=4)


def filtered(
    logits: torch.Tensor, wishes: Sequence[Wish], masks: dict[int, set[int]] | None = None
) -> torch.Tensor:
    columns = columns_of(wishes, logits.shape[1])
    words = torch.zeros(len(masks or {}), -(-logits.shape[1] // 32), dtype=torch.int32)
    for number, (row, allowed) in enumerate((masks or {}).items()):
        columns.mask_rows[row] = number
        for token in allowed:
            words[number, token // 32] |= np.uint32(1 << token % 32).astype(np.int32).item()
    rows = RowSampling(
        temperature=columns.temperature,
        seeds=columns.seeds,
        positions=columns.positions,
        min_position=columns.min_position,
        stop_ids=columns.stop_ids,
        mask_rows=columns.mask_rows if masks else None,
        mask_words=words.to(DEVICE) if masks else None,
    )
    # rows are longer than the ids are many, and hold larger logits there
    left = torch.full((logits.shape[0], logits.shape[1] + 20), 50.0, dtype=logits.dtype)
    left[:, : logits.shape[1]] = logits
    left = left.to(DEVICE)
    filter_rows(left, rows, columns, num_tokenizer_ids=logits.shape[1])
    assert bool((left[:, logits.shape[1] :] == 50.0).all())
    return left[:, : logits.shape[1]].cpu()


WISHES = st.builds(
    Wish,
    temperature=st.sampled_from((0.05, 0.6, 1.0, 3.0)),
    top_k=st.one_of(st.just(0), st.integers(1, NUM_IDS)),
    top_p=st.one_of(st.just(1.0), st.just(0.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 0.9)),
)


def random_rows(count: int, *, seed: int, num_values: int, dtype: torch.dtype) -> torch.Tensor:
    """Few values make many ties."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_values, generator=generator) * 3
    picked = torch.randint(num_values, (count, NUM_IDS), generator=generator)
    return values[picked].to(dtype)


@settings(max_examples=25)
@given(
    wishes=st.lists(WISHES, min_size=1, max_size=3),
    seed=st.integers(0, 2**16),
    num_values=st.sampled_from((4, 30, 5000)),
    dtype=st.sampled_from((torch.bfloat16, torch.float32)),
)
def test_what_is_kept_is_what_the_cpu_keeps(
    wishes: list[Wish], seed: int, num_values: int, dtype: torch.dtype
) -> None:
    logits = random_rows(len(wishes), seed=seed, num_values=num_values, dtype=dtype)
    left = filtered(logits, wishes)
    for row, wish in enumerate(wishes):
        is_kept = left[row].isfinite()
        assert torch.equal(left[row][is_kept], logits[row][is_kept])
        if not (0 < wish.top_k < NUM_IDS or wish.top_p < 1 or wish.min_p > 0):
            assert bool(is_kept.all())
            continue
        # sums are made in another order: an id at a border may fall on either side
        one = logits[row : row + 1].float()
        fewer = kept(one, _moved(wish, -2e-6))[0]
        more = kept(one, _moved(wish, 2e-6))[0]
        assert bool((fewer <= is_kept).all())
        assert bool((is_kept <= more).all())


def _moved(wish: Wish, by: float) -> Wish:
    top_p = wish.top_p if wish.top_p in {0.0, 1.0} else min(max(wish.top_p + by, 0.0), 1.0)
    min_p = max(wish.min_p - by, 0.0) if wish.min_p else 0.0
    return Wish(temperature=wish.temperature, top_k=wish.top_k, top_p=top_p, min_p=min_p)


def test_of_equal_ids_the_lowest_are_taken() -> None:
    equal = torch.zeros(2, NUM_IDS, dtype=torch.bfloat16)
    left = filtered(equal, [Wish(top_p=0.01), Wish(top_p=0.0)])
    assert left[0].isfinite().nonzero().flatten().tolist() == [0, 1, 2]
    assert left[1].isfinite().nonzero().flatten().tolist() == [0]


def test_bans_come_before_filters() -> None:
    logits = torch.arange(NUM_IDS, dtype=torch.float32).repeat(3, 1)
    early = Wish(top_k=2, position=3, min_position=9, stop_ids=(NUM_IDS - 1, 5))
    masked = Wish(top_k=2)
    left = filtered(logits, [early, masked, Wish(top_k=2)], {1: {7, 40, 41}})
    found = [row.isfinite().nonzero().flatten().tolist() for row in left]
    assert found == [[NUM_IDS - 3, NUM_IDS - 2], [40, 41], [NUM_IDS - 2, NUM_IDS - 1]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_must_fail_stays_as_it_is(value: float) -> None:
    logits = random_rows(2, seed=1, num_values=50, dtype=torch.float32)
    logits[0, 17] = value
    left = filtered(logits, [Wish(top_k=3), Wish(top_k=3)])
    assert torch.equal(left[0].isnan(), logits[0].isnan())
    assert int(left[0].isfinite().sum()) == NUM_IDS - 1
    assert int(left[1].isfinite().sum()) >= 3


def test_greedy_rows_are_left_alone() -> None:
    logits = random_rows(1, seed=2, num_values=50, dtype=torch.float32)
    assert torch.equal(filtered(logits, [Wish(temperature=0.0, top_k=3)]), logits)
