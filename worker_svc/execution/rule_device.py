"""What rules and records need of a device: what came so far by slot, and the launches over it.

Everything is launched piece by piece, behind or between recorded work; nothing waits for the
device. Knows tensors, no step.

Legend: S slots, P vocabulary rows of this rank, V ids, H hidden size, E affected rows, n rows told.
"""

from dataclasses import dataclass

import torch
import triton

from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.execution.telling_programs import NUM_FACTS, tell_row
from worker_svc.kernels.rule_programs import forbid, note, penalize, shift
from worker_svc.parallel.group import ParallelGroup

NUM_RECENT = 1024
"""Tokens kept of a slot: as many as the longest sequence that may not appear."""
MOST_FURTHER_IDS = 128
_TILE = 1024
_TELL_TILE = 8192
_TELL_WARPS = 16
_KEY_BITS = {torch.bfloat16: 16, torch.float16: 32, torch.float32: 32}


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """Rows whose logits depend on what came; all int32 but the penalties."""

    rows: torch.Tensor  # [E] among those that choose
    slots: torch.Tensor  # [E]
    positions: torch.Tensor  # [E] of the token to choose
    penalties: torch.Tensor  # float32 [E, 3] repetition, frequency, presence


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """What changes a step's logits; None where there is none of a kind."""

    penalties: Penalties | None
    shift_rows: torch.Tensor  # int32 [k]
    shift_ids: torch.Tensor  # int32 [k]
    shifts: torch.Tensor  # float32 [k]
    sequences: torch.Tensor  # int32 [q, 5] row, slot, position, first token, length
    sequence_tokens: torch.Tensor  # int32


@dataclass(frozen=True, slots=True, eq=False)
class Telling:
    """Rows of which a record is wanted."""

    tokens: torch.Tensor  # int32 [n]
    num_tops: torch.Tensor  # int32 [n]
    ids: torch.Tensor  # int32 [n, most], padded with -1
    most_top: int

    @property
    def num_words(self) -> int:
        """Of a row's answer."""
        return NUM_FACTS + 2 * self.most_top + self.ids.shape[1]


class RuleDevice:
    """The device's memory of what came, and what is done with it."""

    def __init__(
        self,
        *,
        num_slots: int,
        hidden_size: int,
        vocab_size: int,
        part: VocabularyPart,
        group: ParallelGroup,
        device: torch.device,
    ) -> None:
        self.part = part
        self.vocab_size = vocab_size
        self._group = group
        self._counts = torch.zeros(num_slots, part.num_ids, dtype=torch.int32, device=device)
        self._recent = torch.zeros(num_slots, NUM_RECENT, dtype=torch.int32, device=device)
        self._sums = torch.zeros(num_slots, hidden_size, device=device)

    def warm_up(self, dtype: torch.dtype) -> None:
        """Launch everything once, on logits of this kind; a slot's `begin` makes it good again."""
        device = self._recent.device
        one = torch.zeros(1, dtype=torch.int32, device=device)
        penalties = Penalties(one, one, one, torch.ones(1, 3, device=device))
        edits = Edits(
            penalties=penalties,
            shift_rows=one,
            shift_ids=one,
            shifts=torch.zeros(1, device=device),
            sequences=torch.tensor([[0, 0, 0, 0, 1]], dtype=torch.int32, device=device),
            sequence_tokens=one,
        )
        logits = torch.zeros(1, self.part.num_ids, device=device)
        self.edit(logits, edits)
        self.note(penalties, one)
        self.tell(logits.to(dtype), Telling(one, one + 1, one.view(1, 1), most_top=1))

    def begin(
        self, slot: int, ids: torch.Tensor, counts: torch.Tensor, recent: torch.Tensor
    ) -> None:
        """A slot's tokens so far: counts of ids of this rank's part, int32; all of `recent`."""
        self._counts[slot].zero_()
        self._counts[slot].index_copy_(0, ids.long(), counts)
        self._recent[slot].copy_(recent)

    def edit(self, logits: torch.Tensor, edits: Edits) -> None:
        """Change float32 [choosing rows, P] in place."""
        assert logits.dtype == torch.float32
        stride, first_id, num_ids = logits.stride(0), self.part.first_id, self.part.num_ids
        if edits.penalties is not None:
            rows = edits.penalties
            grid = (rows.rows.shape[0], triton.cdiv(num_ids, _TILE))
            penalize[grid](
                logits,
                rows.rows,
                rows.slots,
                rows.penalties,
                self._counts,
                stride,
                num_ids,
                tile=_TILE,
            )
        if edits.shift_rows.shape[0]:
            count = edits.shift_rows.shape[0]
            shift[(triton.cdiv(count, _TILE),)](
                logits,
                edits.shift_rows,
                edits.shift_ids,
                edits.shifts,
                stride,
                first_id,
                num_ids,
                count,
                tile=_TILE,
            )
        if edits.sequences.shape[0]:
            forbid[(edits.sequences.shape[0],)](
                logits,
                edits.sequences,
                edits.sequence_tokens,
                self._recent,
                stride,
                first_id,
                num_ids,
                num_recent=NUM_RECENT,
            )

    def note(self, rows: Penalties, chosen: torch.Tensor) -> None:
        """Take the chosen tokens, int32 [choosing rows], of these rows in."""
        note[(rows.rows.shape[0],)](
            rows.rows,
            rows.slots,
            rows.positions,
            chosen,
            self._counts,
            self._recent,
            self.part.first_id,
            self.part.num_ids,
            num_recent=NUM_RECENT,
        )

    def tell(self, logits: torch.Tensor, telling: Telling) -> torch.Tensor:
        """[n, P] of this rank -> int32 [n, words]; all ranks work out the same."""
        parts = self._group.all_gather(logits)
        whole = parts.transpose(0, 1).flatten(1)
        num_rows, row_length = whole.shape
        out = torch.zeros(num_rows, telling.num_words, dtype=torch.int32, device=whole.device)
        tell_row[(num_rows,)](
            whole,
            telling.tokens,
            telling.num_tops,
            telling.ids,
            out,
            whole.stride(0),
            telling.most_top,
            telling.ids.shape[1],
            telling.num_words,
            num_ids=self.vocab_size,
            row_length=row_length,
            key_bits=_KEY_BITS[whole.dtype],
            most_further=MOST_FURTHER_IDS,
            tile=_TELL_TILE,
            num_warps=_TELL_WARPS,
        )
        return out

    def pool(
        self, slot: int, hidden: torch.Tensor, *, is_mean: bool, is_first: bool
    ) -> torch.Tensor:
        """[tokens of a chunk, H] -> float32 [H]: the last, or the sum so far."""
        if not is_mean:
            return hidden[-1].float()
        total = hidden.float().sum(dim=0)
        if not is_first:
            total += self._sums[slot]
        self._sums[slot].copy_(total)
        return total
