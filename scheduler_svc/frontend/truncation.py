"""Cuts prompts that are too long, where the request asks for it. Knows nothing of text.

Special tokens that the tokenizer adds around a text stay, and count; whatever else is cut is cut as
it comes, the special tokens of a chat template among it.
"""

from array import array
from dataclasses import dataclass

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.violations import Violations


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How many tokens stay at most, and from which end the others go."""

    max_tokens: int
    is_left: bool

    def apply(self, ids: "array[int]", *, num_before: int = 0, num_after: int = 0) -> "array[int]":
        """What stays; the first `num_before` and the last `num_after` ids always do."""
        text = ids[num_before : len(ids) - num_after]
        before, after = ids[:num_before], ids[len(ids) - num_after :]
        before = before[: self.max_tokens - 1]  # one of the text's own stays in any case
        after = after[: self.max_tokens - 1 - len(before)]
        room = self.max_tokens - len(before) - len(after)
        return before + (text[-room:] if self.is_left else text[:room]) + after


def parse_truncation(
    prompt: api.Prompt, *, field: str, limits: RequestLimits, violations: Violations
) -> Cut | None:
    """How the prompt is to be cut; None: not at all."""
    if not prompt.HasField("truncation"):
        return None
    truncation, field = prompt.truncation, f"{field}.truncation"
    most = limits.max_sequence_tokens - 1
    max_tokens = most
    if truncation.HasField("max_tokens"):
        max_tokens = violations.integer(
            f"{field}.max_tokens", truncation.max_tokens, least=1, most=most
        )
    side = violations.enum(f"{field}.side", truncation.side, api.TruncationSide.DESCRIPTOR)
    return Cut(max_tokens=max_tokens, is_left=side != api.TRUNCATION_SIDE_RIGHT)
