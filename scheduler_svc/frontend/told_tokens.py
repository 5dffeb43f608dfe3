"""Token records as the workers make them, to the public log probabilities. Knows no stream.

A record is 32-bit words: the token's log probability (float), its rank (int), pairs of id (int) and
log probability (float), then log probabilities (float) of further ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api

WORD_BYTES = 4


class RecordReader:
    """Reads records of one layout."""

    def __init__(self, *, num_top: int, token_ids: Sequence[int] = ()) -> None:
        self._num_top = num_top
        self._token_ids = tuple(token_ids)
        self.num_bytes = WORD_BYTES * (2 + 2 * num_top + len(self._token_ids))
        """Of a record."""

    def read(
        self, tokens: Sequence[int], records: bytes | bytearray, *, first: int = 0
    ) -> list[api.TokenLogprob]:
        """Of each token; the first one's record is the `first` one."""
        begin, end = first * self.num_bytes, (first + len(tokens)) * self.num_bytes
        part = bytes(records[begin:end])
        shape = (len(tokens), self.num_bytes // WORD_BYTES)
        words = np.frombuffer(part, "<i4").reshape(shape)
        floats = np.frombuffer(part, "<f4").reshape(shape)
        rows = zip(tokens, words.tolist(), floats.tolist(), strict=True)
        return [self._told(token, ints, numbers) for token, ints, numbers in rows]

    def _told(self, token: int, words: list[int], floats: list[float]) -> api.TokenLogprob:
        rank, end = words[1], 2 + 2 * self._num_top
        if not rank:
            # brought along by a caller that resumed elsewhere: nothing is known
            return api.TokenLogprob(token_id=token)
        return api.TokenLogprob(
            token_id=token,
            logprob=floats[0],
            rank=rank,
            top=[
                api.TokenAlternative(token_id=words[at], logprob=floats[at + 1])
                for at in range(2, end, 2)
            ],
            chosen=[
                api.TokenAlternative(token_id=token_id, logprob=logprob)
                for token_id, logprob in zip(self._token_ids, floats[end:], strict=True)
            ],
        )


def output_reader(submit: engine.Submit) -> RecordReader | None:
    """What reads the records of a request's outputs; None where it wants none."""
    sampling = submit.sampling
    if not sampling.has_logprobs:
        return None
    ids = np.frombuffer(sampling.logprob_token_ids, "<i4").tolist()
    return RecordReader(num_top=sampling.num_top_logprobs, token_ids=ids)


def prompt_reader(submit: engine.Submit) -> RecordReader | None:
    """What reads the records of a request's prompt; None where it wants none."""
    if not submit.prompt_records_from:
        return None
    return RecordReader(num_top=submit.num_prompt_top_logprobs)


def prompt_logprobs(
    submit: engine.Submit, records: bytes | bytearray
) -> list[api.TokenLogprob] | None:
    """Of the prompt's tokens from the first wanted one on; None while some are missing."""
    reader = prompt_reader(submit)
    if reader is None:
        return []
    tokens = np.frombuffer(submit.prompt_tokens, "<i4")[submit.prompt_records_from :].tolist()
    if len(records) < len(tokens) * reader.num_bytes:
        return None
    return reader.read(tokens, records)
