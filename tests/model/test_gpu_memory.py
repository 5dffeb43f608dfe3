"""How many KV blocks a GPU rank offers, and the account it gives when none fit."""

from dataclasses import replace

import pytest
import torch

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.execution.kv_cache import KVLayout
from worker_svc.gpu_memory import (
    OVERHEAD_BYTES,
    MemoryTakenError,
    MemoryUse,
    num_gpu_blocks,
    room_for,
)

GIB = 1 << 30
LAYOUT = KVLayout(
    num_layers=4, num_blocks=2, block_size=16, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16
)
USE = MemoryUse(
    total=80 * GIB, free=70 * GIB, resident=8 * GIB, largest_step=2 * GIB, graphs=1 * GIB
)


def config(**settings: float) -> WorkerConfig:
    return WorkerConfig(run_dir="x", model="x", max_num_seqs=4096, **settings)  # type: ignore[arg-type] # by name


def blocks(settings: WorkerConfig, use: MemoryUse = USE) -> int:
    return num_gpu_blocks(settings, LAYOUT, use, max_model_len=131_072)


def test_the_cache_gets_what_the_budget_leaves() -> None:
    left = 40 * GIB - (8 + 2 + 1) * GIB - OVERHEAD_BYTES
    assert blocks(config(gpu_memory_utilization=0.5)) == left // LAYOUT.bytes_per_block


def test_another_instance_beside_us_changes_nothing_while_both_fit() -> None:
    ours = config(gpu_memory_utilization=0.4)
    assert blocks(ours, replace(USE, free=35 * GIB)) == blocks(ours, USE)


def test_numbers_given_are_taken_exactly() -> None:
    assert blocks(config(num_kv_blocks=7)) == 7
    assert blocks(config(kv_cache_bytes=9 * LAYOUT.bytes_per_block + 5)) == 9


def test_no_more_blocks_than_sequences_can_use() -> None:
    few = WorkerConfig(run_dir="x", model="x", max_num_seqs=3)
    assert num_gpu_blocks(few, LAYOUT, USE, max_model_len=100) == 3 * 7 + 1


@pytest.mark.parametrize(
    ("settings", "use", "words"),
    [
        ({"gpu_memory_utilization": 0.1}, USE, "no room for a KV cache of two blocks"),
        ({"gpu_memory_utilization": 0.9}, replace(USE, free=20 * GIB), "does not fit"),
        ({"num_kv_blocks": 10**6}, USE, "a KV cache of 1000000 blocks does not fit"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_whole_account(
    settings: dict[str, float], use: MemoryUse, words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words) as caught:
        blocks(config(**settings), use)
    message = str(caught.value)
    for part in (
        "the GPU has 80.00 GiB",
        "weights and step memory 8.00 GiB",
        "the largest step 2.00 GiB",
        "graphs 1.00 GiB",
        f"free on the GPU now {use.free / GIB:.2f} GiB",
        "try a higher --gpu-memory-utilization",
    ):
        assert part in message


def test_what_others_took_from_a_restarted_group_is_no_fault_of_the_settings() -> None:
    taken = replace(USE, free=20 * GIB)
    with pytest.raises(InvalidConfig), room_for("a cache", is_restart=False):
        blocks(config(), taken)
    # no InvalidConfig, after which no group would be started again
    with (
        pytest.raises(MemoryTakenError, match="does not fit"),
        room_for("a cache", is_restart=True),
    ):
        blocks(config(), taken)


def test_memory_that_the_device_refuses_is_one_clear_error() -> None:
    words = "no room for the weights: 3 GiB"
    with pytest.raises(InvalidConfig, match=words), room_for("the weights", is_restart=False):
        raise torch.OutOfMemoryError("3 GiB")
    with pytest.raises(MemoryTakenError, match=words), room_for("the weights", is_restart=True):
        raise torch.OutOfMemoryError("3 GiB")
