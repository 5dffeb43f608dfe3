"""Computes steps of the hash-token model over a paged cache, as a real runner would. No tensor.

Every token is written through the slot's block table into a cache of (token, position), and the
history that is hashed is read back from there. A wrong block, a stale prefix or a wrong position
therefore changes the tokens, and is logged.
"""

import logging
import time

import numpy as np
import numpy.typing as npt

from tests.fakes.hash_faults import Faults
from tests.fakes.hash_tokens import HashRule, choose_token, digest_of
from worker_svc.batch_step import NO_STOP_ID, BatchStep, Int32s, SampledRows, TokenMasks

_LOGGER = logging.getLogger(__name__)

_NOTHING = -1


class HashRunner:
    """The cache, the last token of each slot, and the rule that makes tokens."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        vocab_size: int,
        eos_every: int = 0,
        faults: Faults | None = None,
    ) -> None:
        """Ids from `vocab_size` on are never chosen."""
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._eos_every = eos_every
        self._faults = faults or Faults()
        self._tokens = np.full((num_blocks, block_size), _NOTHING, np.int32)
        self._positions = np.full((num_blocks, block_size), _NOTHING, np.int32)
        self._last_tokens = np.zeros(num_slots, np.int32)

    def forget(self) -> None:
        """Loses all contents, as a new epoch allows."""
        self._tokens[:] = _NOTHING
        self._positions[:] = _NOTHING
        self._last_tokens[:] = 0

    def execute(self, step: BatchStep) -> SampledRows:
        """Writes the step's tokens, then samples, row by row in the plan's order."""
        if self._faults.step_s:
            time.sleep(self._faults.step_s)
        self._faults.before_step()
        first_tokens = np.cumsum(step.num_tokens) - step.num_tokens
        masks = {} if step.masks is None else _by_row(step.masks)
        tokens: list[int] = []
        failed: list[bool] = []
        for row in range(step.slots.size):
            first = int(first_tokens[row])
            brought = step.token_ids[first : first + int(step.num_tokens[row])]
            self._write(step, row, brought)
            if step.samples[row]:
                token = self._sample(step, row, masks.get(row))
                tokens.append(token or 0)
                failed.append(token is None)
                self._last_tokens[step.slots[row]] = token or 0
        return SampledRows(tokens=np.array(tokens, np.int32), failed=np.array(failed, np.bool_))

    def _write(self, step: BatchStep, row: int, brought: Int32s) -> None:
        tokens = self._last_tokens[step.slots[row : row + 1]] if step.is_decode[row] else brought
        start = int(step.start_positions[row])
        positions = np.arange(start, start + tokens.size, dtype=np.int32)
        blocks = step.block_table[row, positions // self._block_size]
        self._tokens[blocks, positions % self._block_size] = tokens
        self._positions[blocks, positions % self._block_size] = positions

    def _sample(self, step: BatchStep, row: int, words: Int32s | None) -> int | None:
        end = int(step.start_positions[row] + step.num_tokens[row])
        rule = self._rule(step, row)
        digest = digest_of(self._history(step, row, end), rule=rule)
        if self._faults.fails(digest):
            return None
        allowed = None if words is None else _unpacked(words, self._vocab_size)
        return choose_token(digest, position=end, rule=rule, allowed=allowed)

    def _history(self, step: BatchStep, row: int, end: int) -> Int32s:
        """The row's tokens as the cache holds them; spoiled by positions that are not in order."""
        blocks = step.block_table[row, : -(-end // self._block_size)]
        tokens = self._tokens[blocks].ravel()[:end]
        positions = self._positions[blocks].ravel()[:end]
        wrong = np.flatnonzero(positions != np.arange(end))
        if wrong.size:
            _LOGGER.error(
                "slot %d: block table %s holds position %d where %d belongs",
                *(step.slots[row], blocks.tolist(), positions[wrong[0]], wrong[0]),
            )
            return np.concatenate((tokens, positions))
        return tokens

    def _rule(self, step: BatchStep, row: int) -> HashRule:
        columns = step.sampling
        stop_ids = columns.stop_ids[row]
        return HashRule(
            vocab_size=self._vocab_size,
            seed=int(columns.seed[row]),
            temperature=float(columns.temperature[row]),
            stop_token_ids=tuple(stop_ids[stop_ids != NO_STOP_ID].tolist()),
            min_position=int(columns.min_position[row]),
            eos_every=self._eos_every,
        )


def _by_row(masks: TokenMasks) -> dict[int, Int32s]:
    return dict(zip(masks.rows.tolist(), masks.words, strict=True))


def _unpacked(words: Int32s, vocab_size: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little")
    return bits[:vocab_size].astype(np.bool_)
