"""How likely tokens were, as the words of token records. Knows whole rows of logits, no rank.

A record is: the token's log probability (float32), its rank (int32), pairs of id and log
probability of the most likely ids, log probabilities of further ids. Of equal logits the lowest id
comes first; equal logits have the same rank. A row with a NaN has NaN everywhere.

Legend: n rows, V ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from worker_svc.batch_step import Float32s, Int32s

_NO_IDS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class RecordWish:
    """One row's record."""

    token: int
    num_top: int
    ids: Int32s = field(default_factory=lambda: _NO_IDS)


def records_of(logits: torch.Tensor, wishes: Sequence[RecordWish]) -> list[bytes]:
    """The record of each row of [n, V], float32."""
    logprobs = torch.log_softmax(logits, dim=1).numpy()
    return [_record(logprobs[row], wish) for row, wish in enumerate(wishes)]


def joined(
    logprob: float, rank: int, top_ids: Int32s, top_logprobs: Float32s, others: Float32s
) -> bytes:
    """A record's words."""
    num_top = top_ids.size
    words = np.empty(2 + 2 * num_top + others.size, np.int32)
    floats = words.view(np.float32)
    floats[0], words[1] = logprob, rank
    words[2 : 2 + 2 * num_top : 2] = top_ids
    floats[3 : 3 + 2 * num_top : 2] = top_logprobs
    floats[2 + 2 * num_top :] = others
    return words.tobytes()


def _record(logprobs: Float32s, wish: RecordWish) -> bytes:
    own = logprobs[wish.token]
    top = _top(logprobs, wish.num_top)
    return joined(
        float(own), int((logprobs > own).sum()) + 1, top, logprobs[top], logprobs[wish.ids]
    )


def _top(logprobs: Float32s, count: int) -> Int32s:
    """The ids of the largest values, the lowest first among equal ones."""
    if count == 0:
        return _NO_IDS
    if np.isnan(logprobs).any():
        return np.arange(count, dtype=np.int32)
    level = np.partition(logprobs, -count)[-count]
    candidates = np.flatnonzero(logprobs >= level)
    order = np.lexsort((candidates, -logprobs[candidates]))
    return candidates[order[:count]].astype(np.int32)
