"""The masks of one step, from its rows. Moves the rows' states; runs in the thread of the masks."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.plan import Int32s, MaskedRow
from scheduler_svc.engine.grammar.state import CannotGoOn, OutputState

_LOG = logging.getLogger(__name__)

_EVERY_ID = -1
# a wake-up of a thread and of the loop, on a machine that has time
_QUICK_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskOrder:
    """What a step waits for."""

    epoch: step.Epoch
    step: int
    rows: Sequence[MaskedRow]
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMasks:
    """An order, done."""

    epoch: step.Epoch
    step: int
    masks: bytes  # int32[num_rows][ceil(vocab_size / 32)]; every id for a row that cannot go on
    failed: tuple[tuple[MaskedRow, str], ...]  # rows that cannot go on, and why


def is_quick(order: MaskOrder) -> bool:
    """Whether the masks are likely to take less time than to hand them to another thread."""
    took_s = 0.0
    for row in order.rows:
        state = row.grammar
        if not isinstance(state, OutputState) or len(row.tokens) > 1:
            return False
        took_s += state.took_s
    return took_s < _QUICK_S


def make_masks(order: MaskOrder) -> StepMasks:
    """Never raises: rows for which nothing can be computed cannot go on."""
    num_words = -(-order.vocab_size // 32)
    masks = np.full((len(order.rows), num_words), _EVERY_ID, np.int32)
    try:
        failed = _fill(masks, order.rows)
    except Exception:  # noqa: BLE001 - a fault here must end outputs, not leave the step waiting
        _LOG.exception("the masks of step %d could not be computed", order.step)
        failed = [(row, "structured_output: a fault of the service") for row in order.rows]
        masks[:] = _EVERY_ID
    return StepMasks(
        epoch=order.epoch,
        step=order.step,
        masks=masks.astype("<i4", copy=False).tobytes(),
        failed=tuple(failed),
    )


def _fill(masks: Int32s, rows: Sequence[MaskedRow]) -> list[tuple[MaskedRow, str]]:
    """Writes the masks of rows that can go on; returns the others."""
    failed: list[tuple[MaskedRow, str]] = []
    followed: list[tuple[int, OutputState]] = []
    for index, row in enumerate(rows):
        assert isinstance(row.grammar, OutputState), "a state of another maker"
        try:
            row.grammar.follow(row.first_index, row.tokens)
            followed.append((index, row.grammar))
        except CannotGoOn as error:
            failed.append((row, str(error)))
    if not followed:
        return failed
    width = followed[0][1].compiled.vocabulary.num_words
    found = np.zeros((len(followed), width), np.int32)
    for (index, state), words in zip(followed, found, strict=True):
        began = time.perf_counter()
        if state.matcher is not None:
            state.matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        state.took_s = time.perf_counter() - began
        try:
            state.finish_mask(words)
        except CannotGoOn as error:
            failed.append((rows[index], str(error)))
            continue
        used = min(width, masks.shape[1])
        masks[index, :used] = words[:used]
        masks[index, used:] = 0
    return failed
