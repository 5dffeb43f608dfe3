"""What the torch backend writes and reads: its own places, nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.model.rigs import BLOCK_SIZE, Rig, Row, load, random_tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen2")


@pytest.fixture
def rig(folder: Path) -> Rig:
    return Rig(load(folder))


def contents(rig: Rig) -> torch.Tensor:
    """[layers, 2, places, values]: all cached keys and values, by place."""
    pairs = [torch.stack((layer.keys, layer.values)) for layer in rig.cache.layers]
    return torch.stack(pairs).flatten(2, 3).flatten(3).clone()


@torch.inference_mode()
def forward(rig: Rig, rows: list[Row], *, dropped: tuple[int, ...] = ()) -> set[int]:
    """Run rows, with some tokens not stored; the places whose content changed."""
    batch = rig.batch(rows)
    slot_mapping = batch.slot_mapping.clone()
    slot_mapping[list(dropped)] = -1
    before = contents(rig)
    rig.model.forward(replace(batch, slot_mapping=slot_mapping), rig.cache.layers)
    is_changed = (contents(rig) != before).any(dim=3).any(dim=1).any(dim=0)
    return set(is_changed.nonzero().flatten().tolist())


def places(rig: Rig, slot: int, first: int, last: int) -> set[int]:
    table = rig.table[slot]
    return {int(table[p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for p in range(first, last)}


def test_a_step_writes_its_own_places_and_no_other(rig: Rig) -> None:
    # scenario CG-03
    rows = [Row(2, 0, random_tokens(21)), Row(0, 30, random_tokens(9)), Row(1, 40, [5])]
    expected = places(rig, 2, 0, 21) | places(rig, 0, 30, 39) | places(rig, 1, 40, 41)
    assert forward(rig, rows) == expected


def test_negative_places_are_skipped_and_the_trash_block_stays_empty(rig: Rig) -> None:
    # scenario CG-03: -1 is no index; the one-token row comes first in the batch
    rows = [Row(2, 0, random_tokens(5)), Row(1, 40, [5])]
    assert forward(rig, rows, dropped=(0, 3)) == places(rig, 2, 0, 2) | places(rig, 2, 3, 5)
    assert not bool(contents(rig)[:, :, :BLOCK_SIZE].any())


def test_rows_of_very_different_length_decode_as_they_do_alone(rig: Rig) -> None:
    lengths = (1, 2, 30, 31, 33, 60, 90, 94)
    for slot, length in enumerate(lengths):
        rig.logits([Row(slot, 0, random_tokens(length, seed=length))])
    together = rig.logits([Row(slot, length, [9]) for slot, length in enumerate(lengths)])
    for slot, length in enumerate(lengths):
        alone = rig.logits([Row(slot, length, [9])])[0]
        assert float((together[slot] - alone).abs().max()) < 1e-5
