"""A request's grammar, and where each of its outputs stands in it. Knows no thread and no step.

States are made by the loop and from then on touched by the thread of the masks alone.
"""

import math
import time
from array import array
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.grammar.compiler import CompiledGrammar, reason_of
from scheduler_svc.engine.grammar.vocabulary import words_of

Words = npt.NDArray[np.int32]

# To follow tokens; a usual grammar takes 2 us for one. Only when an output starts again are there
# many, and a grammar made to be slow must not hold up the others' steps for long.
_LEAST_LIMIT_S = 0.5
_LIMIT_S_PER_TOKEN = 50e-6


class CannotGoOn(Exception):
    """No token can follow; the text says why, to the caller."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestGrammar:
    """The form of a request's outputs."""

    compiled: CompiledGrammar | None
    """None once it is retired: what is compiled is large."""
    message: engine.Grammar
    """As it was submitted, for whoever attaches."""
    min_tokens: int
    ends: Words
    """Mask of the ids that may end an output where the grammar may stop."""
    allowed: Words | None
    """Mask of the ids that the request allows at all; None: every one."""

    def begin(self) -> "OutputState":
        """The state of an output without tokens."""
        assert self.compiled is not None, "an ended request begins no output"
        return OutputState(self, self.compiled)

    def retired(self) -> "RequestGrammar":
        """What an ended request keeps of it, for whoever attaches: no output can begin."""
        return replace(self, compiled=None)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes when it is retired."""
        masks = self.ends.nbytes + (0 if self.allowed is None else self.allowed.nbytes)
        return self.message.ByteSize() + masks


def request_grammar(compiled: CompiledGrammar, submit: engine.Submit) -> RequestGrammar:
    """The grammar of a Submit."""
    num_words = compiled.vocabulary.num_words
    allowed = np.frombuffer(submit.sampling.allowed_token_ids, "<i4")
    return RequestGrammar(
        compiled=compiled,
        message=submit.grammar,
        min_tokens=submit.min_tokens,
        ends=words_of([*submit.eos_token_ids, *submit.stop_token_ids], num_words=num_words),
        allowed=words_of(allowed, num_words=num_words) if allowed.size else None,
    )


class OutputState:
    """Follows one output's tokens."""

    def __init__(self, grammar: RequestGrammar, compiled: CompiledGrammar) -> None:
        self.grammar = grammar
        self.compiled = compiled
        self._tokens = array("i")
        self._matcher: LLMatcher | None = None
        self.took_s = math.inf  # to make its last mask

    @property
    def matcher(self) -> LLMatcher | None:
        """What the mask is asked of; None while every token may come."""
        return self._matcher

    def follow(self, first_index: int, tokens: npt.NDArray[np.int32]) -> None:
        """Takes in the output's tokens from an index on, of which some may be known already.

        Raises CannotGoOn when they do not fit the grammar. Those that contradict what is known
        replace it: they have to be all tokens then.
        """
        known = self._tokens[first_index:]
        is_joined = (
            first_index <= len(self._tokens) and known.tolist() == tokens[: len(known)].tolist()
        )
        if not is_joined or not self._tokens:
            assert first_index == 0, "tokens of an output were never shown"
            self._restart()
            known = array("i")
        give_up_at = time.monotonic() + _LEAST_LIMIT_S + _LIMIT_S_PER_TOKEN * len(tokens)
        for token in tokens[len(known) :].tolist():
            self._take(token)
            if time.monotonic() > give_up_at:
                raise CannotGoOn("structured_output: the grammar takes too long for this output")

    def finish_mask(self, words: Words) -> None:
        """Makes what the matcher allows [num_words] what the request allows; zeros while there is
        no matcher. Raises CannotGoOn when that is nothing.
        """
        grammar = self.grammar
        may_end = len(self._tokens) >= grammar.min_tokens
        if self._matcher is None:
            words[:] = ~grammar.ends
        elif self._matcher.is_error():
            raise CannotGoOn(f"structured_output: {self._why()}")
        else:
            self.compiled.vocabulary.without_ends(words)
            if not may_end:
                words &= ~grammar.ends
            elif self._matcher.is_accepting():
                words |= grammar.ends
        if grammar.allowed is not None:
            words &= grammar.allowed
        if not words.any():
            raise CannotGoOn(self._reason())

    def _restart(self) -> None:
        self._tokens = array("i")
        begins_at_once = not self.grammar.message.HasField("begins_after_token_id")
        self._matcher = self.compiled.matcher() if begins_at_once else None

    def _take(self, token: int) -> None:
        self._tokens.append(token)
        if self._matcher is None:
            if token == self.grammar.message.begins_after_token_id:
                self._matcher = self.compiled.matcher()
        elif not self._matcher.consume_token(token):
            raise CannotGoOn(f"structured_output: token {token} does not fit: {self._why()}")

    def _reason(self) -> str:
        num_tokens, least = len(self._tokens), self.grammar.min_tokens
        if self._matcher is not None and self._matcher.is_accepting() and num_tokens < least:
            return (
                f"structured_output: the form is complete after {num_tokens} tokens and cannot go"
                f" on, but min_tokens asks for {least}"
            )
        return "structured_output: no token that the request allows can go on with the form"

    def _why(self) -> str:
        return "" if self._matcher is None else reason_of(self._matcher)
