"""The sizes that graphs are recorded for hold every step, tightly where it matters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_svc.execution.buckets import decode_buckets, sample_buckets, token_buckets


@given(most_rows=st.integers(1, 4096))
def test_every_number_of_rows_has_a_bucket(most_rows: int) -> None:
    for buckets in (decode_buckets(most_rows), sample_buckets(most_rows)):
        assert buckets.sizes[-1] == most_rows
        assert list(buckets.sizes) == sorted(set(buckets.sizes))
        assert buckets.holding(most_rows + 1) is None
        for count in {1, max(1, most_rows // 2), most_rows}:
            size = buckets.holding(count)
            assert size is not None
            assert size >= count


def test_decode_buckets_waste_at_most_seven_rows_up_to_256() -> None:
    buckets = decode_buckets(256)
    assert buckets.sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert len(buckets.sizes) == 35
    sizes = [buckets.holding(count) for count in range(1, 257)]
    assert max(size - count for count, size in enumerate(sizes, start=1) if size) == 7


@pytest.mark.parametrize(
    ("most", "largest"), [(8192, 2048), (2048, 2048), (1100, 1024), (100, 96), (8, None)]
)
def test_token_buckets_end_where_graphs_stop_to_pay(most: int, largest: int | None) -> None:
    sizes = token_buckets(most).sizes
    assert (sizes[-1] if sizes else None) == largest
