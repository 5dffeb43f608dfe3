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
from tests.fakes.hash_records import forbidden, told_of
from tests.fakes.hash_tokens import HashRule, choose_token, digest_of
from worker_svc.batch_step import NO_STOP_ID, BatchStep, Int32s, SampledRows, TokenMasks
from worker_svc.slot_rules import Pooling, SlotRules

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
        self._in_order = np.arange(num_blocks * block_size, dtype=np.int32)
        self._last_tokens = np.zeros(num_slots, np.int32)

    def forget(self) -> None:
        """Loses all contents, as a new epoch allows."""
        self._tokens[:] = _NOTHING
        self._positions[:] = _NOTHING
        self._last_tokens[:] = 0

    def execute(self, step: BatchStep) -> SampledRows:
        """Writes the tokens of all rows, then samples."""
        if self._faults.step_s:
            time.sleep(self._faults.step_s)
        self._faults.before_step()
        self._write(step)
        rules = self._rules(step)
        masks = {} if step.masks is None else _by_row(step.masks)
        rows = np.flatnonzero(step.samples).tolist()
        chosen = [self._sample(step, row, rules[row], masks.get(row)) for row in rows]
        tokens = np.array([token or 0 for token in chosen], np.int32)
        failed = np.array([token is None for token in chosen], np.bool_)
        self._last_tokens[step.slots[rows]] = tokens
        return SampledRows(tokens, failed, told_of(step, self._pooled(step), tokens, failed))

    def _pooled(self, step: BatchStep) -> dict[int, Int32s]:
        """Tokens of the rows that give a vector, as the cache holds them."""
        return {
            row: self._history(step, row, int(step.start_positions[row] + step.num_tokens[row]))
            for row, asked in step.rules.items()
            if asked.pooling is not Pooling.NONE and step.samples[row]
        }

    def _write(self, step: BatchStep) -> None:
        rows = np.repeat(np.arange(step.slots.size), step.num_tokens)
        first_tokens = np.cumsum(step.num_tokens) - step.num_tokens
        positions = np.arange(rows.size) - first_tokens[rows] + step.start_positions[rows]
        is_decode = step.is_decode[rows]
        tokens = np.where(is_decode, self._last_tokens[step.slots[rows]], step.token_ids)
        places = step.block_table[rows, positions // self._block_size], positions % self._block_size
        self._tokens[places] = tokens
        self._positions[places] = positions

    def _sample(
        self, step: BatchStep, row: int, rule: HashRule, words: Int32s | None
    ) -> int | None:
        end = int(step.start_positions[row] + step.num_tokens[row])
        history = self._history(step, row, end)
        digest = digest_of(history, rule=rule)
        if self._faults.fails(digest):
            return None
        asked = step.rules.get(row)
        if asked is not None and asked.pooling is not Pooling.NONE:
            return 0
        allowed = None if words is None else _unpacked(words, self._vocab_size)
        if asked is not None:
            allowed = self._allowed(asked, history, allowed)
        return choose_token(digest, position=end, rule=rule, allowed=allowed)

    def _allowed(
        self, rules: SlotRules, history: Int32s, allowed: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.bool_]:
        """What rules leave. There are no logits, so penalties and biases change nothing."""
        left = np.ones(self._vocab_size, np.bool_) if allowed is None else allowed.copy()
        if rules.allowed_words.size:
            named = _unpacked(rules.allowed_words, self._vocab_size)
            left[: named.size] &= named
            left[named.size :] = False
        left[[one for one in forbidden(rules, history) if one < self._vocab_size]] = False
        return left

    def _history(self, step: BatchStep, row: int, end: int) -> Int32s:
        """The row's tokens as the cache holds them; spoiled by positions that are not in order."""
        blocks = step.block_table[row, : -(-end // self._block_size)]
        tokens = self._tokens[blocks].ravel()[:end]
        positions = self._positions[blocks].ravel()[:end]
        wrong = np.flatnonzero(positions != self._in_order[:end])
        if wrong.size:
            _LOGGER.error(
                "slot %d: block table %s holds position %d where %d belongs",
                *(step.slots[row], blocks.tolist(), positions[wrong[0]], wrong[0]),
            )
            return np.concatenate((tokens, positions))
        return tokens

    def _rules(self, step: BatchStep) -> list[HashRule]:
        columns = step.sampling
        values = zip(
            columns.seed.tolist(),
            columns.temperature.tolist(),
            columns.stop_ids.tolist(),
            columns.min_position.tolist(),
            strict=True,
        )
        return [
            HashRule(
                vocab_size=self._vocab_size,
                seed=seed,
                temperature=temperature,
                stop_token_ids=tuple(id_ for id_ in stop_ids if id_ != NO_STOP_ID),
                min_position=min_position,
                eos_every=self._eos_every,
            )
            for seed, temperature, stop_ids, min_position in values
        ]


def _by_row(masks: TokenMasks) -> dict[int, Int32s]:
    return dict(zip(masks.rows.tolist(), masks.words, strict=True))


def _unpacked(words: Int32s, vocab_size: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little")
    return bits[:vocab_size].astype(np.bool_)
