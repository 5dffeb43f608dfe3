"""Ids that may not be chosen: unknown to the tokenizer, stop ids too early, outside a grammar.

Knows this rank's part of the vocabulary. Legend: S sampling rows, P vocabulary rows of this rank,
M rows with a mask.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from worker_svc.batch_step import NO_STOP_ID, Booleans, Int32s, TokenMasks

_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class BannedIds:
    """Single ids of single rows: id `ids[i]` of row `rows[i]`."""

    rows: torch.Tensor  # int64
    ids: torch.Tensor  # int64, counted from this rank's first id

    @classmethod
    def early_stops(
        cls,
        stop_ids: Int32s,
        is_early: Booleans,
        *,
        first_id: int,
        num_ids: int,
        device: torch.device,
    ) -> Self | None:
        """The stop ids [S, any] of rows too early for them [S]; None when there are none."""
        local = stop_ids - first_id
        is_banned = (stop_ids != NO_STOP_ID) & is_early[:, None] & (local >= 0) & (local < num_ids)
        rows, columns = is_banned.nonzero()
        if rows.size == 0:
            return None
        ids = torch.from_numpy(local[rows, columns].astype(np.int64)).to(device)
        return cls(rows=torch.from_numpy(rows).to(device), ids=ids)

    def apply(self, logits: torch.Tensor) -> None:
        """Write -inf into [S, P]."""
        logits[self.rows, self.ids] = -torch.inf


@dataclass(frozen=True, slots=True, eq=False)
class AllowedIds:
    """Masks of some rows over the whole vocabulary, packed."""

    rows: torch.Tensor  # int64 [M]
    words: torch.Tensor  # int32 [M, words]

    @classmethod
    def of_masks(cls, masks: TokenMasks, sampling_row: Int32s, *, device: torch.device) -> Self:
        """`sampling_row` [R] is the place of each row among the rows that sample."""
        rows = sampling_row[masks.rows].astype(np.int64)
        words = np.ascontiguousarray(masks.words)
        return cls(rows=torch.from_numpy(rows).to(device), words=torch.from_numpy(words).to(device))

    def apply(self, logits: torch.Tensor, *, first_id: int) -> None:
        """Write -inf where [S, P] has an id that is not allowed."""
        is_allowed = unpack(self.words, first_id=first_id, num_ids=logits.shape[1])
        if len(self.rows) == len(logits):  # all rows, in order: no copy
            logits.masked_fill_(is_allowed.logical_not_(), -torch.inf)
            return
        chosen = logits.index_select(0, self.rows)
        logits.index_copy_(0, self.rows, chosen.masked_fill_(~is_allowed, -torch.inf))


def unpack(words: torch.Tensor, *, first_id: int, num_ids: int) -> torch.Tensor:
    """Bool [M, num_ids] of ids first_id..; bit i of word j is id 32j + i, ids beyond are false."""
    bits = torch.arange(_BITS, dtype=torch.int32, device=words.device)
    last_word = -(-(first_id + num_ids) // _BITS)
    needed = words[:, first_id // _BITS : last_word]
    flags = ((needed.unsqueeze(2) >> bits) & 1).flatten(1).bool()
    flags = flags[:, first_id % _BITS :][:, :num_ids]
    return torch.nn.functional.pad(flags, (0, num_ids - flags.shape[1]))
