"""What bounds a request at this moment. Knows nothing of requests."""

from dataclasses import dataclass

from scheduler_svc.config import ServiceConfig
from scheduler_svc.frontend.model import ServedModel

# No tokenizer packs text more densely, but for runs of one character that nobody sends.
_MAX_BYTES_PER_TOKEN = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Upper bounds, all included."""

    max_sequence_tokens: int
    vocab_size: int
    max_outputs: int
    max_keep_for_s: float
    max_request_bytes: int
    max_top_logprobs: int = 20
    has_structured_output: bool = True

    @property
    def max_text_bytes(self) -> int:
        """Most bytes of text that are tokenized to see whether they fit."""
        return min(self.max_request_bytes, _MAX_BYTES_PER_TOKEN * self.max_sequence_tokens)


def request_limits(
    config: ServiceConfig, model: ServedModel, *, max_sequence_tokens: int
) -> RequestLimits:
    """The limits now; `max_sequence_tokens` is the core's word, 0 before it knows."""
    own_limit = min(model.max_positions, config.max_model_len or model.max_positions)
    return RequestLimits(
        max_sequence_tokens=max_sequence_tokens or own_limit,
        vocab_size=model.vocab_size,
        max_outputs=config.max_outputs,
        max_keep_for_s=config.max_keep_for,
        max_request_bytes=config.max_request_bytes,
        max_top_logprobs=min(config.max_top_logprobs, model.vocab_size),
        has_structured_output=config.structured_output == "on",
    )
