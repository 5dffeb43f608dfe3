"""A service in this process that answers with the prompt's own words (`echo_model.py`).

Refusals, breaks and pauses are told to it beforehand; what clients did is there to be asked
afterwards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from octavo.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.echo_model import MODEL, SEED, answer_to, chunks, prompt_text, whole
from tests.fakes.refusal import Refusal, rich_status

__all__ = ["MODEL", "SEED", "FakeInferenceServer", "Refusal"]

_WAIT_LIMIT_S = 20.0
_UNKNOWN = Refusal(code=grpc.StatusCode.NOT_FOUND, message="unknown id", reason="REQUEST_NOT_FOUND")


_BAD = inference_pb2.GenerationError(
    code=3,
    message="prompt: is bad",
    reason="INVALID_REQUEST",
    faults=[inference_pb2.FieldFault(field="prompt", rule="is bad")],
)


class FakeInferenceServer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves on a free port of the loopback, or on a unix socket, while its `with` block runs."""

    def __init__(self, *, socket: Path | None = None, replica: str = "here") -> None:
        self.replica = replica
        self.generations: list[inference_pb2.Generation] = []
        self.openings: list[str] = []
        self.resumes: list[inference_pb2.Resume] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.refusals: deque[Refusal] = deque()
        self.batch_sizes: list[int] = []
        self.num_calls = 0
        self.num_known_tokens: int | None = None
        self.hold_after_chunks: int | None = None
        self.ends_early = False
        self.on_call: Callable[[], object] | None = None
        self._known: dict[str, inference_pb2.Generation] = {}
        self._seen = threading.Condition()
        self._cancelled: list[str] = []
        self._left: list[str] = []
        self._held: list[str] = []
        self._is_released = False
        self.health = HealthServicer()
        self._server = self._made()
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
        self.fall()

    # --- what tests tell it and ask it ---

    def refuse(self, *refusals: Refusal) -> None:
        """The next calls fail like this, one after the other."""
        self.refusals.extend(refusals)

    def forget(self, request_id: str) -> None:
        """The generation is unknown from now on."""
        del self._known[request_id]

    def know(self, generation: inference_pb2.Generation) -> None:
        """A generation is known, as if it had been asked for here."""
        self._known[generation.request_id] = generation

    def fall(self) -> None:
        """Breaks every connection and listens no more, until it rises."""
        self._server.stop(grace=0).wait(_WAIT_LIMIT_S)

    def rise(self) -> None:
        """Listens again at the same address."""
        self._server = self._made()
        self._server.add_insecure_port(self.target)
        self._server.start()

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
        """Streams the answer word by word, behind what was received before."""
        is_resumed = request.HasField("resume")
        refusal = self._begin("RESUME" if is_resumed else "GENERATE", context)
        generation = request.generation
        self.generations.append(generation)
        if is_resumed:
            self.resumes.append(request.resume)
            self._check_resume(request, context)
        self._known[generation.request_id] = generation
        received = request.resume.outputs
        ended = [index for index, output in enumerate(received) if output.HasField("finish")]
        from_tokens = [len(output.token_ids) for output in received]
        for chunk in self._stream(generation, refusal, context, from_tokens, ended):
            yield inference_pb2.GenerateResponse(chunk=chunk)

    def Attach(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.AttachRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.AttachResponse]:
        """Streams the rest of an answer."""
        refusal = self._begin("ATTACH", context)
        generation = self._known.get(request.request_id)
        if generation is None:
            self._abort(context, _UNKNOWN)
        if self.num_known_tokens is not None and max(request.from_tokens) > self.num_known_tokens:
            self._abort(
                context,
                Refusal(
                    code=grpc.StatusCode.FAILED_PRECONDITION,
                    reason="READER_AHEAD",
                    details={"resumable": "true"},
                ),
            )
        for chunk in self._stream(generation, refusal, context, request.from_tokens, ()):
            yield inference_pb2.AttachResponse(chunk=chunk)

    def GenerateUnary(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.GenerateUnaryRequest, context: grpc.ServicerContext
    ) -> inference_pb2.GenerateUnaryResponse:
        """Answers in one message."""
        refusal = self._begin("UNARY", context)
        if refusal:
            self._abort(context, refusal)
        return whole(request.generation, replica=self.replica)

    def GenerateBatch(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.GenerateBatchRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateBatchResponse]:
        """Answers the last entry first; a prompt that begins with "bad" is refused."""
        refusal = self._begin("BATCH", context)
        self.batch_sizes.append(len(request.generations))
        sent_all = threading.Event()
        context.add_callback(lambda: self._note_end("batch", sent_all))
        for number, index in enumerate(reversed(range(len(request.generations)))):
            if refusal and (refusal.after_chunks or 0) == number:
                self._abort(context, refusal)
            generation = request.generations[index]
            if self.hold_after_chunks == number:
                self._hold(generation.request_id, context)
            response = inference_pb2.GenerateBatchResponse(index=index)
            if prompt_text(generation.prompt).startswith("bad"):
                response.error.MergeFrom(_BAD)
                response.error.request_id = generation.request_id
            else:
                response.answer.CopyFrom(whole(generation, replica=self.replica))
            yield response
        sent_all.set()

    def Cancel(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.CancelRequest, context: grpc.ServicerContext
    ) -> inference_pb2.CancelResponse:
        """Notes the cancel; a second one finds the generation ended."""
        with self._seen:
            is_repeated = request.request_id in self._cancelled
            self._cancelled.append(request.request_id)
            self._seen.notify_all()
        if request.request_id not in self._known:
            self._abort(context, _UNKNOWN)
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
        refusal = self._begin("TOKENIZE", context)
        if refusal:
            self._abort(context, refusal)
        text = prompt_text(request.prompt)
        return inference_pb2.TokenizeResponse(token_ids=[ord(one) for one in text], text=text)

    def Estimate(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.EstimateRequest, context: grpc.ServicerContext
    ) -> inference_pb2.EstimateResponse:
        """As many requests ahead as the priority says; no prediction for an empty queue."""
        refusal = self._begin("ESTIMATE", context)
        if refusal:
            self._abort(context, refusal)
        ahead = max(0, request.scheduling.priority)
        return inference_pb2.EstimateResponse(
            prompt_tokens=len(prompt_text(request.prompt)),
            num_requests_ahead=ahead,
            num_tokens_ahead=10 * ahead,
            predicted_ttft_s=0.5 * ahead if ahead else None,
        )

    def Embed(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.EmbedRequest, context: grpc.ServicerContext
    ) -> inference_pb2.EmbedResponse:
        """A vector of two: the prompt's length, and 1."""
        refusal = self._begin("EMBED", context)
        if refusal:
            self._abort(context, refusal)
        lengths = [len(prompt_text(prompt)) for prompt in request.prompts]
        return inference_pb2.EmbedResponse(
            embeddings=[
                inference_pb2.Embedding(values=[length, 1.0], prompt_tokens=length)
                for length in lengths
            ],
            usage=inference_pb2.Usage(prompt_tokens=sum(lengths)),
        )

    def Score(  # noqa: N802 - the name in the contract
        self, request: inference_pb2.ScoreRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ScoreResponse:
        """Each character of a continuation has the log probability -1, as the second best."""
        refusal = self._begin("SCORE", context)
        if refusal:
            self._abort(context, refusal)
        texts = [
            one.text or "".join(chr(token_id) for token_id in one.token_ids.ids)
            for one in request.continuations
        ]
        return inference_pb2.ScoreResponse(
            scores=[
                inference_pb2.ContinuationScore(
                    logprob=-len(text),
                    tokens=[
                        inference_pb2.TokenLogprob(token_id=ord(one), logprob=-1, rank=2)
                        for one in text
                    ],
                )
                for text in texts
            ],
            usage=inference_pb2.Usage(
                prompt_tokens=len(prompt_text(request.prompt)) + sum(map(len, texts))
            ),
        )

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
        refusal = self._begin("INFO", context)
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
            replica=self.replica,
            version="0",
            max_outputs=4,
            max_request_bytes=1 << 20,
        )

    # --- inside ---

    def _made(self) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(max_workers=40))
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        return server

    def _begin(self, opening: str, context: grpc.ServicerContext) -> Refusal | None:
        self.num_calls += 1
        if self.on_call is not None:
            self.on_call()
        self.openings.append(opening)
        self.metadata.append(dict(context.invocation_metadata()))
        return self.refusals.popleft() if self.refusals else None

    def _check_resume(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> None:
        """A resume holds an entry for each output, and tokens that were sent."""
        answer, received = answer_to(request.generation), request.resume.outputs
        texts = ["".join(chr(one) for one in output.token_ids) for output in received]
        is_right = all(answer.startswith(text) for text in texts)
        if not is_right or len(texts) != (request.generation.sampling.n or 1):
            self._abort(context, Refusal(code=grpc.StatusCode.INVALID_ARGUMENT, reason="RESUME"))

    def _stream(
        self,
        generation: inference_pb2.Generation,
        refusal: Refusal | None,
        context: grpc.ServicerContext,
        from_tokens: Sequence[int],
        ended: Collection[int],
    ) -> Iterator[inference_pb2.StreamChunk]:
        sent_all = threading.Event()
        context.add_callback(lambda: self._note_end(generation.request_id, sent_all))
        if refusal is None or refusal.after_chunks or refusal.after_headers:
            context.send_initial_metadata((("octavo-request-id", generation.request_id),))
        answer = chunks(generation, replica=self.replica, from_tokens=from_tokens, ended=ended)
        for number, chunk in enumerate(answer):
            if refusal and refusal.after_chunks == number:
                self._abort(context, refusal)
            if self.hold_after_chunks == number:
                self._hold(generation.request_id, context)
            if self.ends_early and any(output.HasField("finish") for output in chunk.outputs):
                break
            if chunk.outputs or chunk.HasField("start"):
                yield chunk
        if refusal:
            self._abort(context, refusal)
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

    def _abort(self, context: grpc.ServicerContext, refusal: Refusal) -> NoReturn:
        context.abort_with_status(rich_status(refusal))
        raise AssertionError("abort raises")
