"""The messages of embed and score, and what their answers become. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from octavo.decoding import decode_logprob, decode_usage
from octavo.errors import invalid_field
from octavo.prompts import PromptInput, any_prompt, plain_prompt
from octavo.results import Embeddings, Score, Scores
from octavo.v1 import inference_pb2

PoolingName = Literal["last", "mean"]
_POOLINGS: dict[str, inference_pb2.Pooling.ValueType] = {
    "last": inference_pb2.POOLING_LAST,
    "mean": inference_pb2.POOLING_MEAN,
}


def embed_request(
    prompts: PromptInput | Sequence[PromptInput],
    *,
    pooling: PoolingName,
    normalize: bool,
    priority: int,
) -> inference_pb2.EmbedRequest:
    """Asks for a vector of each prompt; one text is one prompt. Raises InvalidRequest."""
    if pooling not in _POOLINGS:
        raise invalid_field("pooling", f"must be one of {', '.join(_POOLINGS)}, got {pooling!r}")
    listed: Sequence[PromptInput] = [prompts] if _is_one(prompts) else prompts  # type: ignore[list-item,assignment]  # as it says
    return inference_pb2.EmbedRequest(
        prompts=[plain_prompt(prompt) for prompt in listed],
        pooling=_POOLINGS[pooling],
        normalize=normalize,
        scheduling=inference_pb2.SchedulingParams(priority=priority),
    )


def score_request(
    prompt: PromptInput, continuations: Sequence[PromptInput], *, priority: int
) -> inference_pb2.ScoreRequest:
    """Asks how likely each continuation is. Raises InvalidRequest."""
    if isinstance(continuations, str):
        raise invalid_field("continuations", "must be a list of continuations, got str")
    return inference_pb2.ScoreRequest(
        prompt=any_prompt(prompt, None, {}),
        continuations=[_continuation(one) for one in continuations],
        scheduling=inference_pb2.SchedulingParams(priority=priority),
    )


def decode_embeddings(message: inference_pb2.EmbedResponse) -> Embeddings:
    """The vectors."""
    return Embeddings(
        vectors=tuple(tuple(one.values) for one in message.embeddings),
        usage=decode_usage(message.usage),
    )


def decode_scores(message: inference_pb2.ScoreResponse) -> Scores:
    """How likely the continuations are."""
    return Scores(
        scores=tuple(
            Score(
                logprob=one.logprob,
                tokens=tuple(decode_logprob(token) for token in one.tokens),
                is_greedy=one.is_greedy,
            )
            for one in message.scores
        ),
        usage=decode_usage(message.usage),
    )


def _is_one(prompts: PromptInput | Sequence[PromptInput]) -> bool:
    """Whether it is a prompt, and not a list of them: a text, or token ids."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        return True
    return bool(prompts) and all(isinstance(one, int) for one in prompts)


def _continuation(continuation: PromptInput) -> inference_pb2.Continuation:
    prompt = plain_prompt(continuation)
    if prompt.WhichOneof("kind") == "text":
        return inference_pb2.Continuation(text=prompt.text)
    return inference_pb2.Continuation(token_ids=prompt.token_ids)
