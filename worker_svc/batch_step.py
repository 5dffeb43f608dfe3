"""One step as the runner takes it, and what comes back: numpy columns. Knows no tensor, no message.

A *row* is a slot's part in the step. Every column of rows has the same length and order. Shapes:
R rows, T tokens of all rows, S rows that sample, W blocks in the widest table, M rows with a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # rules are made of these columns
    from worker_svc.slot_rules import SlotRules

Int32s: TypeAlias = npt.NDArray[np.int32]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Float32s: TypeAlias = npt.NDArray[np.float32]
Booleans: TypeAlias = npt.NDArray[np.bool_]

NO_STOP_ID = -1
"""Fills the unused places of `SamplingColumns.stop_ids`."""


class InvalidStepError(Exception):
    """A step that cannot be run: names the column and the rule. Nothing was computed or written."""

    def __init__(self, column: str, rule: str) -> None:
        super().__init__(f"step column {column}: {rule}")
        self.column = column
        self.rule = rule


@dataclass(frozen=True, slots=True, eq=False)
class SamplingColumns:
    """How each row chooses its token; read only for rows that sample.

    Values are resolved: `temperature` 0 is greedy, `top_k` 0 (or at least the vocabulary) is off,
    `top_p` 1 is off, `min_p` 0 is off.
    """

    temperature: Float32s  # [R]
    top_k: Int32s  # [R]
    top_p: Float32s  # [R]
    min_p: Float32s  # [R]
    seed: UInt64s  # [R]
    min_position: Int32s  # [R] first absolute position where a stop id may be chosen
    stop_ids: Int32s  # [R, most stop ids of a row], padded with NO_STOP_ID

    @classmethod
    def greedy(cls, num_rows: int) -> Self:
        """Columns of `num_rows` greedy rows without stop ids."""
        return cls(
            temperature=np.zeros(num_rows, np.float32),
            top_k=np.zeros(num_rows, np.int32),
            top_p=np.ones(num_rows, np.float32),
            min_p=np.zeros(num_rows, np.float32),
            seed=np.zeros(num_rows, np.uint64),
            min_position=np.zeros(num_rows, np.int32),
            stop_ids=np.zeros((num_rows, 0), np.int32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasks:
    """Which ids the masked rows may choose: bit i of word j allows id 32 * j + i."""

    rows: Int32s  # [M] row indexes, ascending; each row samples
    words: Int32s  # [M, ceil(vocabulary / 32)]; ids beyond the given words are not allowed


@dataclass(frozen=True, slots=True, eq=False)
class NewBlocks:
    """Blocks that slots get with a step, for runners that keep the slots' tables themselves.

    Ordered by slot, then index. Between starts of a slot its table only grows.
    """

    slots: Int32s  # [N]
    indexes: Int32s  # [N] in the slot's table
    ids: Int32s  # [N]


@dataclass(frozen=True, slots=True, eq=False)
class BatchStep:
    """All rows of one step, in the order of the plan.

    A decode row has one token: the slot's last sampled one, kept by the runner; its entry in
    `token_ids` is ignored. Any other row brings its tokens.
    """

    slots: Int32s  # [R]
    num_tokens: Int32s  # [R] tokens this row computes, at least 1
    start_positions: Int32s  # [R] absolute position of the row's first token
    is_decode: Booleans  # [R]
    samples: Booleans  # [R] whether a token is chosen after the row's last token
    token_ids: Int32s  # [T] row after row
    block_table: Int32s  # [R, W] block ids, padded with 0; [R, 0] for a runner that keeps tables
    sampling: SamplingColumns
    masks: TokenMasks | None = None
    new_blocks: NewBlocks | None = None
    rules: Mapping[int, SlotRules] = field(default_factory=dict)
    """By row, of those rows whose slot has some. A start's value is the same in all its steps."""


@dataclass(frozen=True, slots=True, eq=False)
class StepRecords:
    """What is told of tokens beside their ids, as StepResult's columns of these names say."""

    token_records: bytes = b""
    prompt_records: bytes = b""
    pooled: bytes = b""


NO_RECORDS = StepRecords()


@dataclass(frozen=True, slots=True, eq=False)
class SampledRows:
    """The outcome of a step, in row order of the rows that sample."""

    tokens: Int32s  # [S] 0 where failed
    failed: Booleans  # [S] the row's logits were not numbers, or no id was allowed
    records: StepRecords = NO_RECORDS
