"""The facts of one step that layers need, frozen. Knows no slot, no sampling, no message.

Legend: N tokens, R rows, W blocks in the widest table, S rows that sample, B tokens in a block.
Rows are ordered: first the *single* rows (one query token each: decode), then the *chunk* rows.
Tokens follow row after row. Tensors live on the device; the tuples are the same facts for the
host, so that nothing waits for the device to learn a shape.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """One step's batch. Keys of a row end with its last query token."""

    token_ids: torch.Tensor  # int64 [N]
    positions: torch.Tensor  # int64 [N]
    slot_mapping: (
        torch.Tensor
    )  # int64 [N] place in the cache, block * B + offset; negative: not stored
    block_table: torch.Tensor  # int32 [R, W] padded with the trash block 0
    cu_seqlens_q: torch.Tensor  # int32 [R + 1] first token of each row, then N
    cache_seqlens: torch.Tensor  # int32 [R] keys a row sees, this step's included
    last_indexes: torch.Tensor  # int64 [S] token index of the last token of each row that samples
    query_lens: tuple[int, ...]  # [R]
    key_lens: tuple[int, ...]  # [R] cache_seqlens, for the host
    num_single_rows: int

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.query_lens)

    @property
    def num_sampling_rows(self) -> int:
        """S."""
        return self.last_indexes.shape[0]
