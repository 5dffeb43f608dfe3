"""A service in this process that answers with the prompt's own words. Knows no model.

One character is one token, its id the code point. Refusals and pauses are told to it beforehand;
what clients did is there to be asked afterwards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from octavo.v1 import inference_pb2, inference_pb2_grpc

SEED = 20_240_229
MODEL = "echo"
_WAIT_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How one call fails, and after how many chunks."""

    code: grpc.StatusCode
    message: str = "refused"
    reason: str = ""
    details: dict[str, str] = field(default_factory=dict)
    violations: tuple[tuple[str, str], ...] = ()
    retry_delay_s: float | None = None
    pushback_ms: str | None = None
    after_chunks: int = 0


@dataclass(frozen=True)
class _Status(grpc.Status):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


class FakeInferenceServer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves on a free port of the loopback, or on a unix socket, while its `with` block runs."""

    def __init__(self, *, socket: Path | None = None) -> None:
        self.generations: list[inference_pb2.Generation] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.refusals: deque[Refusal] = deque()
        self.num_calls = 0
        self.hold_after_chunks: int | None = None
        self.ends_early = False
        self.on_call: Callable[[], object] | None = None
        self._seen = threading.Condition()
        self._cancelled: list[str] = []
        self._left: list[str] = []
        self._held: list[str] = []
        self._is_released = False
        self._server = grpc.server(ThreadPoolExecutor(max_workers=40))
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        self.health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        if socket is None:
            self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            self.target = f"unix:{socket}"
            self._server.add_insecure_port(self.target)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        self._server.stop(grace=0).wait(_WAIT_LIMIT_S)

    # --- what tests tell it and ask it ---

    def refuse(self, *refusals: Refusal) -> None:
        """The next calls fail like this, one after the other."""
        self.refusals.extend(refusals)

    def release(self) -> None:
        """Held streams go on."""
        with self._seen:
            self._is_released = True
            self._seen.notify_all()

    def wait_for_hold(self, request_id: str) -> bool:
        """Whether a call of this request comes to where it is held."""
        with self._seen:
            return self._seen.wait_for(lambda: request_id in self._held, _WAIT_LIMIT_S)

    def wait_for_cancel(self, request_id: str) -> bool:
        """Whether a Cancel of this request arrives."""
        with self._seen:
            return self._seen.wait_for(lambda: request_id in self._cancelled, _WAIT_LIMIT_S)

    def wait_for_departure(self, request_id: str) -> bool:
        """Whether the client of a held stream goes away."""
        with self._seen:
            return self._seen.wait_for(lambda: request_id in self._left, _WAIT_LIMIT_S)

    def cancelled(self) -> list[str]:
        """Request ids in the order of their Cancel calls."""
        with self._seen:
            return list(self._cancelled)

    # --- the service ---

    def Generate(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Streams the answer word by word."""
        refusal = self._begin(context)
        self.generations.append(request.generation)
        for chunk in self._stream(request.generation, refusal, context):
            yield inference_pb2.GenerateResponse(chunk=chunk)

    def Attach(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.AttachRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.AttachResponse]:
        """Streams the rest of an answer."""
        refusal = self._begin(context)
        known = [one for one in self.generations if one.request_id == request.request_id]
        if not known:
            self._abort(context, Refusal(code=grpc.StatusCode.NOT_FOUND, message="unknown id"))
        for chunk in self._stream(known[-1], refusal, context, from_tokens=request.from_tokens):
            yield inference_pb2.AttachResponse(chunk=chunk)

    def GenerateUnary(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.GenerateUnaryRequest, context: grpc.ServicerContext
    ) -> inference_pb2.GenerateUnaryResponse:
        """Answers in one message."""
        refusal = self._begin(context)
        self.generations.append(request.generation)
        if refusal:
            self._abort(context, refusal)
        chunks = list(self._chunks(request.generation, ()))
        if self.hold_after_chunks is not None:
            self._hold(request.generation.request_id, context)
        outputs = [
            inference_pb2.Output(
                index=index,
                text="".join(chunk.outputs[index].text for chunk in chunks),
                token_ids=[one for chunk in chunks for one in chunk.outputs[index].token_ids],
                finish=chunks[-1].outputs[index].finish,
            )
            for index in range(request.generation.sampling.n or 1)
        ]
        return inference_pb2.GenerateUnaryResponse(
            request_id=request.generation.request_id,
            start=chunks[0].start,
            outputs=outputs,
            usage=chunks[-1].usage,
        )

    def Cancel(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.CancelRequest, context: grpc.ServicerContext
    ) -> inference_pb2.CancelResponse:
        """Notes the cancel; a second one finds the generation ended."""
        with self._seen:
            is_known = any(one.request_id == request.request_id for one in self.generations)
            is_repeated = request.request_id in self._cancelled
            self._cancelled.append(request.request_id)
            self._seen.notify_all()
        if not is_known:
            self._abort(context, Refusal(code=grpc.StatusCode.NOT_FOUND, message="unknown id"))
        outcome = (
            inference_pb2.CANCEL_OUTCOME_ALREADY_FINISHED
            if is_repeated
            else inference_pb2.CANCEL_OUTCOME_CANCELLED
        )
        return inference_pb2.CancelResponse(outcome=outcome)

    def Tokenize(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        """One token for each character."""
        refusal = self._begin(context)
        if refusal:
            self._abort(context, refusal)
        text = prompt_text(request.prompt)
        return inference_pb2.TokenizeResponse(token_ids=[ord(one) for one in text], text=text)

    def Detokenize(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.DetokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        """The characters; "<" and ">" are the special tokens here."""
        text = "".join(chr(one) for one in request.token_ids)
        if request.skip_special_tokens:
            text = text.replace("<", "").replace(">", "")
        return inference_pb2.DetokenizeResponse(text=text)

    def GetModelInfo(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> inference_pb2.GetModelInfoResponse:
        """Facts of a small model."""
        refusal = self._begin(context)
        if refusal:
            self._abort(context, refusal)
        return inference_pb2.GetModelInfoResponse(
            model=MODEL,
            architecture="EchoForCausalLM",
            max_sequence_tokens=2048,
            vocab_size=0x110000,
            num_tokenizer_ids=0x110000,
            eos_token_ids=[0, 3],
            has_chat_template=True,
            default_sampling=inference_pb2.SamplingParams(temperature=0.5, top_k=20),
            replica="here",
            version="0",
            max_outputs=4,
            max_request_bytes=1 << 20,
        )

    # --- inside ---

    def _begin(self, context: grpc.ServicerContext) -> Refusal | None:
        self.num_calls += 1
        if self.on_call is not None:
            self.on_call()
        self.metadata.append(dict(context.invocation_metadata()))
        return self.refusals.popleft() if self.refusals else None

    def _stream(
        self,
        generation: inference_pb2.Generation,
        refusal: Refusal | None,
        context: grpc.ServicerContext,
        *,
        from_tokens: Sequence[int] = (),
    ) -> Iterator[inference_pb2.StreamChunk]:
        sent_all = threading.Event()
        context.add_callback(lambda: self._note_end(generation.request_id, sent_all))
        for number, chunk in enumerate(self._chunks(generation, from_tokens)):
            if refusal and refusal.after_chunks == number:
                self._abort(context, refusal)
            if self.hold_after_chunks == number:
                self._hold(generation.request_id, context)
            if self.ends_early and any(output.HasField("finish") for output in chunk.outputs):
                break
            yield chunk
        sent_all.set()

    def _note_end(self, request_id: str, sent_all: threading.Event) -> None:
        with self._seen:
            if not sent_all.is_set():
                self._left.append(request_id)
            self._seen.notify_all()

    def _hold(self, request_id: str, context: grpc.ServicerContext) -> None:
        """Waits until the streams are released or this one's client is gone."""
        with self._seen:
            self._held.append(request_id)
            self._seen.notify_all()
        with self._seen:
            self._seen.wait_for(lambda: self._is_released or not context.is_active(), _WAIT_LIMIT_S)

    def _chunks(
        self, generation: inference_pb2.Generation, from_tokens: Sequence[int]
    ) -> Iterator[inference_pb2.StreamChunk]:
        """The answer's words, each with the space behind it; output i begins at from_tokens[i]."""
        prompt = prompt_text(generation.prompt)
        answer = answer_to(generation)
        is_cut = len(answer) < len(answer_to(inference_pb2.Generation(prompt=generation.prompt)))
        num_outputs = generation.sampling.n or 1
        begins = [*from_tokens, *[0] * num_outputs][:num_outputs]
        position = 0
        for number, word in enumerate(words(answer)):
            end = position + len(word)
            chunk = inference_pb2.StreamChunk(request_id=generation.request_id)
            if number == 0:
                chunk.start.CopyFrom(self._start(generation))
            for index, begin in enumerate(begins):
                fresh = answer[max(position, begin) : end]
                chunk.outputs.append(_delta(index, fresh, max(position, begin)))
                if end == len(answer):
                    chunk.outputs[-1].finish.CopyFrom(_finish(answer, is_cut=is_cut))
            chunk.usage.prompt_tokens = len(prompt)
            chunk.usage.completion_tokens = end * num_outputs
            yield chunk
            position = end

    def _start(self, generation: inference_pb2.Generation) -> inference_pb2.StreamStart:
        seed = generation.sampling.seed if generation.sampling.HasField("seed") else SEED
        return inference_pb2.StreamStart(
            seed=seed, replica="here", model=MODEL, max_tokens=100, warnings=["an echo"]
        )

    def _abort(self, context: grpc.ServicerContext, refusal: Refusal) -> NoReturn:
        metadata: list[tuple[str, str | bytes]] = [
            ("grpc-status-details-bin", _rich_status(refusal).SerializeToString())
        ]
        if refusal.pushback_ms is not None:
            metadata.append(("grpc-retry-pushback-ms", refusal.pushback_ms))
        context.abort_with_status(_Status(refusal.code, refusal.message, tuple(metadata)))
        raise AssertionError("abort raises")


def prompt_text(prompt: inference_pb2.Prompt) -> str:
    """What the fake model reads: a chat is its messages' contents, joined by spaces."""
    match prompt.WhichOneof("kind"):
        case "text":
            return prompt.text
        case "token_ids":
            return "".join(chr(one) for one in prompt.token_ids.ids)
        case _:
            return " ".join(message.content for message in prompt.chat.messages)


def answer_to(generation: inference_pb2.Generation) -> str:
    """What the fake model answers."""
    answer = "You said: " + prompt_text(generation.prompt)
    return answer[: generation.stopping.max_tokens or len(answer)]


def words(text: str) -> list[str]:
    """The text cut behind each space."""
    return text.replace(" ", " \0").split("\0")


def _delta(index: int, text: str, first_token_index: int) -> inference_pb2.OutputDelta:
    ids = [ord(one) for one in text]
    return inference_pb2.OutputDelta(
        index=index, first_token_index=first_token_index, text=text, token_ids=ids
    )


def _finish(answer: str, *, is_cut: bool) -> inference_pb2.Finish:
    if is_cut:
        return inference_pb2.Finish(
            reason=inference_pb2.FINISH_REASON_LENGTH, num_tokens=len(answer)
        )
    return inference_pb2.Finish(
        reason=inference_pb2.FINISH_REASON_EOS, stop_token_id=0, num_tokens=len(answer)
    )


def _rich_status(refusal: Refusal) -> status_pb2.Status:
    details = [
        error_details_pb2.ErrorInfo(
            reason=refusal.reason, domain="octavo", metadata=refusal.details
        ),
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=name, description=rule)
                for name, rule in refusal.violations
            ]
        ),
    ]
    if refusal.retry_delay_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(refusal.retry_delay_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    for message in details:
        packed = any_pb2.Any()
        packed.Pack(message)
        status.details.append(packed)
    return status
