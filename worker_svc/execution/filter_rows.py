"""top-k, top-p and min-p on a device in one launch: what execution/filters.py says, in place.

One program takes one row and walks over it, which lies in the second-level cache, a few times. No
sorting: the k-th largest value, and the value at which the most likely ids reach p, are found by
their bits, two at a time from the top, since both count or weigh what lies above a threshold. A
bfloat16 has 16 bits, so eight walks find either. Rows without a filter end at once.

Knows whole rows of logits, no shard and no noise. Legend: S rows, V ids, W places for stop ids a
row, M masks.
"""

import torch

from worker_svc.execution.filter_programs import filter_row
from worker_svc.execution.packed_columns import SampleColumns
from worker_svc.kernels.sampling import RowSampling

_TILE = 8192  # a walk waits for memory once a tile
_NUM_WARPS = 16
_KEY_BITS = {torch.bfloat16: 16, torch.float16: 32, torch.float32: 32}


def filter_rows(
    logits: torch.Tensor, rows: RowSampling, columns: SampleColumns, *, num_tokenizer_ids: int
) -> None:
    """Write -inf into [S, V] where a row's filters, after its bans, take an id out.

    Ids from `num_tokenizer_ids` on are taken for banned; their logits stay. Rows without a filter,
    greedy ones, and those whose largest logit is no finite number stay as they are: the first two
    need nothing, the last fails when a token is chosen.
    """
    num_rows, row_length = logits.shape
    if num_rows == 0:
        return
    assert logits.stride(1) == 1
    has_masks = rows.mask_rows is not None and rows.mask_words is not None
    filter_row[(num_rows,)](
        logits,
        rows.temperature,
        rows.positions,
        rows.min_position,
        rows.stop_ids,
        columns.top_k,
        columns.top_p,
        columns.log_min_p,
        rows.mask_rows if has_masks else rows.positions,
        rows.mask_words if has_masks else rows.positions,
        logits.stride(0),
        rows.stop_ids.shape[1],
        num_mask_words=rows.mask_words.shape[1] if rows.mask_words is not None else 0,
        num_ids=num_tokenizer_ids,
        row_length=row_length,
        key_bits=_KEY_BITS[logits.dtype],
        tile=_TILE,
        num_warps=_NUM_WARPS,
    )
