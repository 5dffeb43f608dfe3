"""What one stream brought so far: joins its deltas over all its calls, and says where to go on.

Nothing is guessed: news that does not follow what is known is an error. Receives nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from octavo.decoding import (
    decode_finish,
    decode_logprob,
    decode_start,
    decode_tool_call,
    decode_usage,
)
from octavo.errors import InternalError
from octavo.joined_calls import JoinedCalls
from octavo.recovery import Opening
from octavo.results import Completion, Delta, Generation, StreamStart, TokenLogprob, Usage
from octavo.v1 import inference_pb2


class OtherReplica(Exception):
    """Another replica than the one that was received from answered: it may know other tokens."""


class StreamState:
    """Everything one stream brought so far."""

    def __init__(
        self, request_id: str, *, from_tokens: Sequence[int] = (), num_outputs: int | None = None
    ) -> None:
        """`num_outputs` None: not known, as for a generation that somebody else began."""
        self.request_id = request_id
        self.start: StreamStart | None = None
        self._num_outputs = num_outputs
        self._usage = Usage()
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._reasonings: defaultdict[int, list[str]] = defaultdict(list)
        self._calls: defaultdict[int, JoinedCalls] = defaultdict(JoinedCalls)
        self._token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self._logprobs: defaultdict[int, list[TokenLogprob]] = defaultdict(list)
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._finishes: dict[int, inference_pb2.Finish] = {}
        self._next_index = defaultdict(int, enumerate(from_tokens))
        self._attaches = False
        self._repeatable: set[int] = set()
        self._first_cached_tokens: int | None = None

    # --- one call after the other ---

    def expect(self, opening: Opening) -> None:
        """Another call goes on with the stream; an attached one says every finish again."""
        self._attaches = opening is Opening.ATTACH
        self._repeatable = set(self._finishes) if self._attaches else set()
        if self._has_tokens and self._first_cached_tokens is None:
            self._first_cached_tokens = self._usage.cached_tokens

    def attach_request(self) -> inference_pb2.AttachRequest:
        """Asks for what comes after the known tokens."""
        num_known = max(self._next_index, default=-1) + 1
        return inference_pb2.AttachRequest(
            request_id=self.request_id,
            from_tokens=[self._next_index[index] for index in range(num_known)],
        )

    def resume(self, *, age_ms: int) -> inference_pb2.Resume:
        """All that is known, for a service that knows nothing. Needs the number of outputs."""
        assert self._num_outputs is not None, "only a generation of our own is begun again"
        return inference_pb2.Resume(
            outputs=[
                inference_pb2.ResumedOutput(
                    token_ids=self._token_ids[index], finish=self._finishes.get(index)
                )
                for index in range(self._num_outputs)
            ],
            seed=self.start.seed if self.start else None,
            age_ms=age_ms,
        )

    # --- what came ---

    def absorb(self, chunk: inference_pb2.StreamChunk) -> tuple[Delta, ...]:
        """The news in a chunk; raises InternalError when it does not follow what came before.

        Raises OtherReplica, and takes nothing, when an Attach was answered by another replica.
        """
        if chunk.HasField("start"):
            self._take_start(decode_start(chunk.start))
        if chunk.prompt_logprobs and not self._prompt_logprobs:
            # each call says them again
            self._prompt_logprobs = tuple(decode_logprob(one) for one in chunk.prompt_logprobs)
        if chunk.HasField("usage"):
            self._take_usage(decode_usage(chunk.usage))
        deltas = (self._absorb_delta(message) for message in chunk.outputs)
        return tuple(delta for delta in deltas if delta is not None)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing but the status; one follows where all outputs failed."""
        is_whole = self._num_outputs is not None and len(self._finishes) == self._num_outputs
        return is_whole and any(
            finish.reason != inference_pb2.FINISH_REASON_ERROR for finish in self._finishes.values()
        )

    def check_ended(self) -> None:
        """Raises InternalError unless every output has ended."""
        expected = range(self._num_outputs) if self._num_outputs else self._texts
        unfinished = sorted(set(expected) - set(self._finishes))
        if unfinished:
            raise self._broken(f"the stream ended, and output {unfinished[0]} did not")

    def generation(self) -> Generation:
        """All of it as one result."""
        outputs = (
            Completion(
                index=index,
                text="".join(self._texts[index]),
                token_ids=tuple(self._token_ids[index]),
                finish=decode_finish(self._finishes[index]) if index in self._finishes else None,
                reasoning="".join(self._reasonings[index]),
                tool_calls=self._calls[index].whole(),
                logprobs=tuple(self._logprobs[index]),
            )
            for index in sorted(self._texts)
        )
        return Generation(
            request_id=self.request_id,
            outputs=tuple(outputs),
            usage=self._usage,
            start=self.start,
            prompt_logprobs=self._prompt_logprobs,
        )

    # --- inside ---

    @property
    def _has_tokens(self) -> bool:
        return any(self._token_ids.values())

    def _take_start(self, start: StreamStart) -> None:
        known = self.start
        if known is not None:
            for name in ("seed", "model"):
                if getattr(start, name) != getattr(known, name):
                    raise self._broken(
                        f"the stream goes on with {name} {getattr(start, name)}, it began with"
                        f" {getattr(known, name)}"
                    )
            if self._attaches and self._has_tokens and start.replica != known.replica:
                self._refuse_replica(start.replica, known.replica)
        self.start = start

    def _refuse_replica(self, name: str, known: str) -> NoReturn:
        if self._num_outputs is None:
            raise self._broken(f"the stream goes on at replica {name}, it came from {known}")
        raise OtherReplica

    def _take_usage(self, usage: Usage) -> None:
        if self._first_cached_tokens is not None:
            # prefixes that were found when it went on say nothing about how it began
            usage = replace(usage, cached_tokens=self._first_cached_tokens)
        self._usage = usage

    def _absorb_delta(self, message: inference_pb2.OutputDelta) -> Delta | None:
        """The delta; None for one that is empty, and for a finish that is only said again."""
        index = message.index
        if index in self._finishes:
            self._check_repeated(message)
            return None
        self._check_follows(message)
        if not (message.text or message.token_ids or message.HasField("finish")):
            return None
        self._next_index[index] += len(message.token_ids)
        self._texts[index].append(message.text)
        self._reasonings[index].append(message.reasoning)
        calls = tuple(decode_tool_call(call) for call in message.tool_calls)
        self._calls[index].add(calls)
        self._token_ids[index].extend(message.token_ids)
        logprobs = tuple(decode_logprob(one) for one in message.logprobs)
        self._logprobs[index].extend(logprobs)
        if message.HasField("finish"):
            # a copy: a part would keep the whole message in memory
            self._finishes[index] = inference_pb2.Finish()
            self._finishes[index].CopyFrom(message.finish)
        return Delta(
            index=index,
            text=message.text,
            token_ids=tuple(message.token_ids),
            first_token_index=message.first_token_index,
            finish=decode_finish(message.finish) if message.HasField("finish") else None,
            usage=self._usage,
            reasoning=message.reasoning,
            tool_calls=calls,
            logprobs=logprobs,
        )

    def _check_follows(self, message: inference_pb2.OutputDelta) -> None:
        index, expected = message.index, self._next_index[message.index]
        if message.token_ids and message.first_token_index != expected:
            raise self._broken(
                f"output {index} goes on at token {message.first_token_index}, not at {expected}"
            )
        num_tokens = expected + len(message.token_ids)
        if message.HasField("finish") and message.finish.num_tokens != num_tokens:
            raise self._broken(
                f"output {index} ended after {message.finish.num_tokens} tokens, {num_tokens} came"
            )

    def _check_repeated(self, message: inference_pb2.OutputDelta) -> None:
        index, known = message.index, self._finishes[message.index]
        if index not in self._repeatable or message.text or message.token_ids:
            raise self._broken(f"output {index} goes on after its end")
        again = message.finish
        if (again.reason, again.num_tokens) != (known.reason, known.num_tokens):
            raise self._broken(f"output {index} ended in another way before")
        self._repeatable.discard(index)

    def _broken(self, message: str) -> InternalError:
        return InternalError(message, code="INTERNAL", request_id=self.request_id)
