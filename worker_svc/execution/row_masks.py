"""Masks over the vocabulary for rows of a step, packed. Knows no device.

Legend: M rows with a mask, V vocabulary; bit i of word j allows id 32 * j + i.
"""

import numpy as np
import numpy.typing as npt

from worker_svc.batch_step import BatchStep, Int32s
from worker_svc.execution.step_packing import crowded_rows

_BITS = 32


def masks_of(step: BatchStep, *, vocab_size: int) -> tuple[Int32s, Int32s]:
    """The rows that need a mask, counted among those that choose, and their masks int32 [M, words].

    A row needs one for its grammar, for the ids it allows, or to ban more stop ids than a step's
    columns hold.
    """
    num_words = -(-vocab_size // _BITS)
    needs_ban = crowded_rows(step)
    needs_mask = needs_ban.copy()
    allowed = {
        row: rules.allowed_words
        for row, rules in step.rules.items()
        if step.samples[row] and rules.allowed_words.size
    }
    needs_mask[list(allowed)] = True
    if step.masks is not None:
        needs_mask[step.masks.rows] = True
    rows = np.flatnonzero(needs_mask)
    words = np.full((rows.size, num_words), -1, np.int32)
    if step.masks is not None:
        given = step.masks.words[:, :num_words]
        places = np.searchsorted(rows, step.masks.rows)
        words[places, : given.shape[1]] = given
        words[places, given.shape[1] :] = 0
    for row, of_row in allowed.items():
        at = int(np.searchsorted(rows, row))
        words[at, : of_row.size] &= of_row
        words[at, of_row.size :] = 0
    for place in np.flatnonzero(needs_ban[rows]):
        stop_ids = step.sampling.stop_ids[rows[place]]
        _ban(words[place], stop_ids[stop_ids >= 0])
    row_among_choosing = np.cumsum(step.samples, dtype=np.int32) - 1
    chosen: Int32s = row_among_choosing[rows]
    return chosen, words


def _ban(words: npt.NDArray[np.int32], ids: Int32s) -> None:
    bits = np.uint32(1) << (ids % _BITS).astype(np.uint32)
    np.bitwise_and.at(words.view(np.uint32), ids // _BITS, ~bits)
