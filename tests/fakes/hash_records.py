"""What the hash-token model tells of tokens: words that follow from the token and its position.

So whoever has a token knows its record, and a record of another token, or one told twice, shows.
Vectors follow from all tokens of their prompt.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import xxhash

from worker_svc.batch_step import NO_RECORDS, BatchStep, Booleans, Int32s, StepRecords
from worker_svc.slot_rules import Pooling, SlotRules

VECTOR_SIZE = 16


def logprob_of(token: int, position: int) -> float:
    """Exact as a float32."""
    return -((token * 31 + position) % 64) / 8


def rank_of(token: int, position: int) -> int:
    """From 1."""
    return 1 + (token + position) % 5


def record_of(token: int, position: int, *, num_top: int, ids: Sequence[int] = ()) -> bytes:
    """A token's record at its absolute position."""
    words = np.zeros(2 + 2 * num_top + len(ids), np.int32)
    floats = words.view(np.float32)
    floats[0], words[1] = logprob_of(token, position), rank_of(token, position)
    words[2 : 2 + 2 * num_top : 2] = np.arange(num_top)
    floats[3 : 3 + 2 * num_top : 2] = -np.arange(num_top) / 4
    floats[2 + 2 * num_top :] = [logprob_of(one, position) for one in ids]
    return words.tobytes()


def vector_of(prompt: Sequence[int], *, pooling: Pooling) -> bytes:
    """A prompt's vector."""
    seed = xxhash.xxh3_64_intdigest(np.array(prompt, "<i4").tobytes(), seed=pooling.value)
    vector: bytes = np.random.default_rng(seed).normal(size=VECTOR_SIZE).astype("<f4").tobytes()
    return vector


def told_of(
    step: BatchStep, histories: dict[int, Int32s], tokens: Int32s, failed: Booleans
) -> StepRecords:
    """A step's records; `histories` are the tokens of pooled rows as the cache holds them."""
    if not step.rules:
        return NO_RECORDS
    places = np.cumsum(step.samples) - 1
    token_records, pooled = [], []
    for row, rules in sorted(step.rules.items()):
        if not step.samples[row] or failed[places[row]]:
            continue
        if rules.pooling is not Pooling.NONE:
            pooled.append(vector_of(histories[row].tolist(), pooling=rules.pooling))
        elif rules.has_logprobs:
            end = int(step.start_positions[row] + step.num_tokens[row])
            token_records.append(
                record_of(
                    int(tokens[places[row]]),
                    end,
                    num_top=rules.num_top,
                    ids=rules.logprob_ids.tolist(),
                )
            )
    return StepRecords(
        token_records=b"".join(token_records),
        prompt_records=b"".join(_prompt_records(step)),
        pooled=b"".join(pooled),
    )


def forbidden(rules: SlotRules, history: Int32s) -> set[int]:
    """Ids that end a sequence which may not appear."""
    return {
        int(one[-1])
        for one in rules.bad_sequences
        if one.size == 1 or np.array_equal(history[1 - one.size :], one[:-1])
    }


def _prompt_records(step: BatchStep) -> Iterator[bytes]:
    for row, rules in sorted(step.rules.items()):
        start = int(step.start_positions[row])
        for position in rules.prompt_positions(start, start + int(step.num_tokens[row])):
            token = int(rules.history[position])
            yield record_of(token, position, num_top=rules.num_prompt_top)
