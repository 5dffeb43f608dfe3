"""Counts what a batch of requests has brought, for its progress bar. Reads no clock by itself."""

from __future__ import annotations

from collections.abc import Callable

from octavo.results import Delta


class Meter:
    """Tokens computed and generated since it was made; fed by the thread that reads the streams."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun_at = clock()
        self._num_prefill_tokens = 0
        self._num_decode_tokens = 0
        self._seen: set[str] = set()

    def note(self, request_id: str, delta: Delta) -> None:
        """Counts a delta; the first of a request brings its prompt, less what was cached."""
        self._num_decode_tokens += len(delta.token_ids)
        if request_id not in self._seen:
            self._seen.add(request_id)
            self._num_prefill_tokens += delta.usage.prompt_tokens - delta.usage.cached_tokens

    def text(self) -> str:
        """Both rates, averaged since the beginning."""
        elapsed_s = max(self._clock() - self._begun_at, 1e-3)
        prefill = self._num_prefill_tokens / elapsed_s
        decode = self._num_decode_tokens / elapsed_s
        return f"prefill {prefill:.0f} tok/s, decode {decode:.0f} tok/s"
