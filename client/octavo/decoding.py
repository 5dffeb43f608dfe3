"""Turns the service's messages into results, and joins the deltas of a stream. Receives nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from octavo.errors import InternalError
from octavo.results import (
    CancelOutcome,
    Completion,
    Delta,
    Finish,
    FinishReason,
    Generation,
    ModelInfo,
    StreamStart,
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
_SAMPLING_SCALARS = ("temperature", "top_k", "top_p", "min_p", "seed", "n")


class StreamState:
    """Everything one stream brought so far."""

    def __init__(self, request_id: str, *, from_tokens: Sequence[int] = ()) -> None:
        self.request_id = request_id
        self.start: StreamStart | None = None
        self._usage = Usage()
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self._finishes: dict[int, Finish] = {}
        self._next_index = defaultdict(int, enumerate(from_tokens))

    def absorb(self, chunk: inference_pb2.StreamChunk) -> tuple[Delta, ...]:
        """The news in a chunk; raises InternalError when it does not follow what came before."""
        if chunk.HasField("start"):
            self.start = decode_start(chunk.start)
        if chunk.HasField("usage"):
            self._usage = decode_usage(chunk.usage)
        return tuple(self._absorb_delta(message) for message in chunk.outputs)

    def check_ended(self) -> None:
        """Raises InternalError unless every output that began has ended."""
        unfinished = sorted(set(self._texts) - set(self._finishes))
        if unfinished:
            raise self._broken(f"the stream ended, and output {unfinished[0]} did not")

    def generation(self) -> Generation:
        """All of it as one result."""
        outputs = (
            Completion(
                index=index,
                text="".join(self._texts[index]),
                token_ids=tuple(self._token_ids[index]),
                finish=self._finishes.get(index),
            )
            for index in sorted(self._texts)
        )
        return Generation(
            request_id=self.request_id,
            outputs=tuple(outputs),
            usage=self._usage,
            start=self.start,
        )

    def _absorb_delta(self, message: inference_pb2.OutputDelta) -> Delta:
        index = message.index
        expected = self._next_index[index]
        if message.token_ids and message.first_token_index != expected:
            raise self._broken(
                f"output {index} goes on at token {message.first_token_index}, not at {expected}"
            )
        self._next_index[index] += len(message.token_ids)
        self._texts[index].append(message.text)
        self._token_ids[index].extend(message.token_ids)
        finish = decode_finish(message.finish) if message.HasField("finish") else None
        if finish:
            self._finishes[index] = finish
        return Delta(
            index=index,
            text=message.text,
            token_ids=tuple(message.token_ids),
            first_token_index=message.first_token_index,
            finish=finish,
            usage=self._usage,
        )

    def _broken(self, message: str) -> InternalError:
        return InternalError(message, code="INTERNAL", request_id=self.request_id)


def decode_generation(message: inference_pb2.GenerateUnaryResponse) -> Generation:
    """The answer of a unary call."""
    return Generation(
        request_id=message.request_id,
        outputs=tuple(_completions(message.outputs)),
        usage=decode_usage(message.usage),
        start=decode_start(message.start),
    )


def _completions(outputs: Iterable[inference_pb2.Output]) -> Iterable[Completion]:
    for output in outputs:
        yield Completion(
            index=output.index,
            text=output.text,
            token_ids=tuple(output.token_ids),
            finish=decode_finish(output.finish),
        )


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
        default_sampling=SamplingParams(
            **{
                name: getattr(sampling, name)
                for name in _SAMPLING_SCALARS
                if sampling.HasField(name)  # type: ignore[arg-type]  # the names of this message
            }
        ),
    )
