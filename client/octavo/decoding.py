"""Turns the service's messages into results. Receives nothing."""

from __future__ import annotations

from octavo.results import (
    CancelOutcome,
    Completion,
    Estimate,
    Finish,
    FinishReason,
    Generation,
    ModelInfo,
    StreamStart,
    TokenAlternative,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from octavo.sampling import SamplingParams
from octavo.v1 import inference_pb2

_FINISH_REASONS = {
    inference_pb2.FINISH_REASON_EOS: FinishReason.EOS,
    inference_pb2.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    inference_pb2.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
    inference_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    inference_pb2.FINISH_REASON_TIME_LIMIT: FinishReason.TIME_LIMIT,
    inference_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    inference_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}
_CANCEL_OUTCOMES = {
    inference_pb2.CANCEL_OUTCOME_CANCELLED: CancelOutcome.CANCELLED,
    inference_pb2.CANCEL_OUTCOME_ALREADY_FINISHED: CancelOutcome.ALREADY_FINISHED,
}
_SAMPLING_SCALARS = ("temperature", "top_k", "top_p", "min_p", "seed", "n", "repetition_penalty")


def decode_finish(message: inference_pb2.Finish) -> Finish:
    """How an output ended; a reason of a newer service counts as an error that names it."""
    reason = _FINISH_REASONS.get(message.reason)
    unknown = f"finish reason {message.reason}, unknown to this version of the client"
    return Finish(
        reason=reason or FinishReason.ERROR,
        num_tokens=message.num_tokens,
        stop_string=message.stop_string,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        message=message.message if reason else unknown,
    )


def decode_start(message: inference_pb2.StreamStart) -> StreamStart:
    """Facts fixed when a generation began."""
    return StreamStart(
        seed=message.seed,
        replica=message.replica,
        model=message.model,
        max_tokens=message.max_tokens,
        warnings=tuple(message.warnings),
        num_truncated_tokens=message.num_truncated_tokens,
        prompt=(
            Tokens(token_ids=tuple(message.prompt.token_ids), text=message.prompt.text)
            if message.HasField("prompt")
            else None
        ),
    )


def decode_tool_call(message: inference_pb2.ToolCallDelta) -> ToolCallDelta:
    """News of a call."""
    return ToolCallDelta(
        index=message.index,
        id=message.id,
        name=message.name,
        arguments_json=message.arguments_json,
    )


def decode_logprob(message: inference_pb2.TokenLogprob) -> TokenLogprob:
    """How likely a token was."""
    return TokenLogprob(
        token_id=message.token_id,
        logprob=message.logprob,
        rank=message.rank,
        top=tuple(_alternative(one) for one in message.top),
        chosen=tuple(_alternative(one) for one in message.chosen),
    )


def _alternative(message: inference_pb2.TokenAlternative) -> TokenAlternative:
    return TokenAlternative(token_id=message.token_id, logprob=message.logprob)


def decode_completion(message: inference_pb2.Output) -> Completion:
    """One whole output."""
    return Completion(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish=decode_finish(message.finish) if message.HasField("finish") else None,
        reasoning=message.reasoning,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)
            for call in message.tool_calls
        ),
        logprobs=tuple(decode_logprob(one) for one in message.logprobs),
    )


def decode_generation(message: inference_pb2.GenerateUnaryResponse) -> Generation:
    """A whole answer."""
    return Generation(
        request_id=message.request_id,
        outputs=tuple(decode_completion(output) for output in message.outputs),
        usage=decode_usage(message.usage),
        start=decode_start(message.start),
        prompt_logprobs=tuple(decode_logprob(one) for one in message.prompt_logprobs),
    )


def decode_usage(message: inference_pb2.Usage) -> Usage:
    """Token counts."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
    )


def decode_cancel(message: inference_pb2.CancelResponse) -> CancelOutcome:
    """What a cancel found."""
    return _CANCEL_OUTCOMES.get(message.outcome, CancelOutcome.CANCELLED)


def decode_estimate(message: inference_pb2.EstimateResponse) -> Estimate:
    """What a request would meet."""
    return Estimate(
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        num_requests_ahead=message.num_requests_ahead,
        num_tokens_ahead=message.num_tokens_ahead,
        predicted_ttft_s=(
            message.predicted_ttft_s if message.HasField("predicted_ttft_s") else None
        ),
    )


def decode_model_info(message: inference_pb2.GetModelInfoResponse) -> ModelInfo:
    """What is served."""
    sampling = message.default_sampling
    return ModelInfo(
        model=message.model,
        architecture=message.architecture,
        max_sequence_tokens=message.max_sequence_tokens,
        vocab_size=message.vocab_size,
        num_tokenizer_ids=message.num_tokenizer_ids,
        eos_token_ids=tuple(message.eos_token_ids),
        has_chat_template=message.has_chat_template,
        replica=message.replica,
        version=message.version,
        max_outputs=message.max_outputs,
        max_request_bytes=message.max_request_bytes,
        has_structured_output=message.has_structured_output,
        max_top_logprobs=message.max_top_logprobs,
        embedding_size=message.embedding_size,
        default_sampling=SamplingParams(
            **{
                name: getattr(sampling, name)
                for name in _SAMPLING_SCALARS
                if sampling.HasField(name)  # type: ignore[arg-type]  # the names of this message
            }
        ),
    )
