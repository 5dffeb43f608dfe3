"""The client for blocking code. Every method has its twin in `aio.py`."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, Unpack

import grpc

from octavo.batch_request import BatchAnswer, BatchRequest
from octavo.channel import DEFAULT_TARGET, OptionValue, client_settings
from octavo.connection import Connection
from octavo.decoding import decode_cancel, decode_estimate, decode_model_info
from octavo.errors import ClientClosed
from octavo.prompts import (
    MessagesInput,
    PromptInput,
    TemplateOptions,
    any_prompt,
    chat_prompt,
    plain_prompt,
)
from octavo.requests import (
    ChatOptions,
    RequestOptions,
    batch_messages,
    generation_message,
    split_chat_options,
)
from octavo.results import (
    CancelOutcome,
    Embeddings,
    Estimate,
    Generation,
    ModelInfo,
    Scores,
    Tokens,
)
from octavo.retries import ReconnectPolicy, RetryPolicy
from octavo.sampling import SamplingParams
from octavo.stream import Stream
from octavo.stream_request import StreamRequest, stream_request
from octavo.stream_state import StreamState
from octavo.v1 import inference_pb2
from octavo.vectors import (
    PoolingName,
    decode_embeddings,
    decode_scores,
    embed_request,
    score_request,
)

# Generations outlive a lost connection, to be gone on with; leaving one early cancels it.
KEEP_FOR_S = 30.0
# Nobody waits for the parts of a whole answer; stop strings are looked for this often.
WHOLE_ANSWER_INTERVAL = 8
# Calls that compute nothing are answered at once, or something is wrong.
QUICK_TIMEOUT_S = 30.0


class Client:
    """Calls one Octavo service; usable from many threads; close it, or use it in a `with` block.

    target: host:port, unix:/path or dns:///name:port; or several replicas, as a list or with commas
        between them: calls go to one until it fails, then to the next, and stay there.
    timeout: seconds a generation may take, retries included; None is no limit. Every call can set
        its own. Calls that compute nothing end after 30 s.
    credentials: TLS, as made by `grpc.ssl_channel_credentials()`; None is plain text.
    api_key: sent as `authorization: Bearer KEY`.
    metadata: further pairs sent with every call.
    retry: how calls that failed before they were accepted are tried again.
    reconnect: how generations that were accepted are gone on with when their stream breaks.
    channel_options: gRPC channel options that go before this client's own.
    """

    def __init__(
        self,
        target: str | Sequence[str] = DEFAULT_TARGET,
        *,
        timeout: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        retry: RetryPolicy | None = None,
        reconnect: ReconnectPolicy | None = None,
        channel_options: Sequence[tuple[str, OptionValue]] = (),
    ) -> None:
        settings = client_settings(
            target,
            timeout=timeout,
            credentials=credentials,
            api_key=api_key,
            metadata=metadata,
            retry=retry,
            reconnect=reconnect,
            channel_options=channel_options,
        )
        self._timeout_s = timeout
        self._connection = Connection(settings)
        self._finalizer = weakref.finalize(self, self._connection.close)

    def chat(
        self,
        messages: MessagesInput,
        *,
        params: SamplingParams | None = None,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> Generation:
        """The model's answer to a conversation, or to one message of the user (a str)."""
        request_options, template = split_chat_options(options)
        prompt = chat_prompt(messages, template)
        return self._generate(prompt, params, timeout, request_options)

    def generate(
        self,
        prompt: PromptInput,
        *,
        params: SamplingParams | None = None,
        timeout: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Generation:
        """What the model writes after a prompt: plain text, or token ids."""
        return self._generate(plain_prompt(prompt), params, timeout, options)

    def stream(
        self,
        prompt: PromptInput | MessagesInput | None = None,
        *,
        messages: MessagesInput | None = None,
        params: SamplingParams | None = None,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> Stream:
        """The deltas of a generation as they come, after a plain prompt or for a conversation.

        `stream("Once upon a time")` continues text; `stream(messages="Hi")` and
        `stream([Message("user", "Hi")])` go through the model's chat template.
        """
        request_options, template = split_chat_options(options)
        prompt_message = any_prompt(prompt, messages, template)
        return self._stream(self._generation(prompt_message, params, request_options), timeout)

    def generate_batch(
        self,
        prompts: Sequence[PromptInput | MessagesInput],
        *,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> Iterator[BatchAnswer]:
        """The answers to many prompts, each as soon as it has ended, in the order of their ends.

        A prompt is text, token ids, or a conversation (a list of messages). One `params` for all,
        or one for each. An entry that fails is an answer with an error, and takes no other with it;
        what a lost connection left unanswered is asked for again. Leaving the iterator early
        cancels the rest.
        """
        request = BatchRequest(batch_messages(prompts, params=params, options=options))
        timeout_s = self._timeout_s if timeout is None else timeout
        return self._connection.batch(request, timeout_s=timeout_s)

    def attach(
        self, request_id: str, *, from_tokens: Sequence[int] = (), timeout: float | None = None
    ) -> Stream:
        """Goes on with a generation that is running or kept; its former stream ends (Superseded).

        `from_tokens[i]` is how many tokens of output i the caller has: deltas begin after them.
        """
        state = StreamState(request_id, from_tokens=from_tokens)
        return self._stream(StreamRequest(state, None, clock=time.monotonic), timeout)

    def cancel(self, request_id: str, *, timeout: float = QUICK_TIMEOUT_S) -> CancelOutcome:
        """Ends a generation now; raises NotFound for an id that the service does not know."""
        response = self._connection.call(
            lambda stub: stub.Cancel,
            inference_pb2.CancelRequest(request_id=request_id),
            timeout_s=timeout,
            request_id=request_id,
            searches=True,
        )
        return decode_cancel(response)

    def tokenize(
        self,
        prompt: PromptInput | MessagesInput | None = None,
        *,
        messages: MessagesInput | None = None,
        timeout: float = QUICK_TIMEOUT_S,
        **template: Unpack[TemplateOptions],
    ) -> Tokens:
        """The token ids that the model would see."""
        response = self._connection.call(
            lambda stub: stub.Tokenize,
            inference_pb2.TokenizeRequest(prompt=any_prompt(prompt, messages, template)),
            timeout_s=timeout,
        )
        return Tokens(token_ids=tuple(response.token_ids), text=response.text)

    def estimate(
        self,
        prompt: PromptInput | MessagesInput | None = None,
        *,
        messages: MessagesInput | None = None,
        priority: int = 0,
        timeout: float = QUICK_TIMEOUT_S,
        **template: Unpack[TemplateOptions],
    ) -> Estimate:
        """What a request with this prompt would meet now: its cached part, the queue, its wait."""
        response = self._connection.call(
            lambda stub: stub.Estimate,
            inference_pb2.EstimateRequest(
                prompt=any_prompt(prompt, messages, template),
                scheduling=inference_pb2.SchedulingParams(priority=priority),
            ),
            timeout_s=timeout,
        )
        return decode_estimate(response)

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        pooling: PoolingName = "last",
        normalize: bool = True,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Embeddings:
        """A vector for each prompt: the last token's hidden state, or the mean over all tokens."""
        response = self._connection.call(
            lambda stub: stub.Embed,
            embed_request(prompts, pooling=pooling, normalize=normalize, priority=priority),
            timeout_s=self._timeout_s if timeout is None else timeout,
        )
        return decode_embeddings(response)

    def score(
        self,
        prompt: PromptInput,
        continuations: Sequence[PromptInput],
        *,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        """How likely each continuation of the prompt is: log probabilities of its tokens."""
        response = self._connection.call(
            lambda stub: stub.Score,
            score_request(prompt, continuations, priority=priority),
            timeout_s=self._timeout_s if timeout is None else timeout,
        )
        return decode_scores(response)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        timeout: float = QUICK_TIMEOUT_S,
    ) -> str:
        """The text of token ids."""
        response = self._connection.call(
            lambda stub: stub.Detokenize,
            inference_pb2.DetokenizeRequest(
                token_ids=token_ids, skip_special_tokens=skip_special_tokens
            ),
            timeout_s=timeout,
        )
        return response.text

    def model_info(self, *, timeout: float = QUICK_TIMEOUT_S) -> ModelInfo:
        """Which model is served, its limits and its defaults."""
        response = self._connection.call(
            lambda stub: stub.GetModelInfo,
            inference_pb2.GetModelInfoRequest(),
            timeout_s=timeout,
        )
        return decode_model_info(response)

    def close(self) -> None:
        """Cancels what still runs and closes the connection. Repeating it is harmless."""
        self._finalizer()

    def _generate(
        self,
        prompt: inference_pb2.Prompt,
        params: SamplingParams | None,
        timeout: float | None,
        options: RequestOptions,
    ) -> Generation:
        options.setdefault("stream_interval", WHOLE_ANSWER_INTERVAL)
        with self._stream(self._generation(prompt, params, options), timeout) as stream:
            generation = stream.result()
        if not stream.has_ended:
            raise ClientClosed("this client was closed during the call")
        return generation

    def _generation(
        self,
        prompt: inference_pb2.Prompt,
        params: SamplingParams | None,
        options: RequestOptions,
    ) -> StreamRequest:
        options.setdefault("keep_for_s", KEEP_FOR_S)
        message = generation_message(prompt, params=params, options=options)
        return stream_request(message, clock=time.monotonic)

    def _stream(self, request: StreamRequest, timeout: float | None) -> Stream:
        timeout_s = self._timeout_s if timeout is None else timeout
        connection = self._connection.open_stream(request, timeout_s=timeout_s)
        return Stream(connection, request.state, owner=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
