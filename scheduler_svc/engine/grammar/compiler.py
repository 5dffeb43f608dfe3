"""From a grammar's text to one that outputs can follow. Knows no request and no thread.

Bounded by work, not by time: the same text is compiled or refused on every machine, however busy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.refusals import BadGrammar
from scheduler_svc.engine.grammar.vocabulary import Vocabulary

MAX_SOURCE_BYTES = 2**19
"""More than any text that a frontend lets through becomes in another syntax."""
_MAX_REASON = 600

# Beside what the library bounds itself (nesting, the size of a grammar). Others' rows wait while a
# step's masks are made: the work for one is about 20 ms at most.
_LIMITS = LLParserLimits(
    max_lexer_states=50_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    verbose_errors=False,
)
_READERS: dict[int, Callable[[str], str]] = {
    engine.GRAMMAR_KIND_JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
    engine.GRAMMAR_KIND_REGEX: LLMatcher.grammar_from_regex,
    engine.GRAMMAR_KIND_LARK: LLMatcher.grammar_from_lark,
}


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar that any number of outputs can follow, each with a matcher of its own.

    Matchers share what is costly: the lexer's states, found as texts are met.
    """

    prototype: LLMatcher
    vocabulary: Vocabulary

    def matcher(self) -> LLMatcher:
        """A matcher that has seen no token."""
        return self.prototype.deep_copy()


def compile_grammar(grammar: engine.Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
    """Raises BadGrammar with the library's reason, also for a grammar that nothing can match."""
    read = _READERS.get(grammar.kind)
    if read is None:
        raise BadGrammar(f"kind {grammar.kind} is not known")
    num_bytes = len(grammar.source.encode())
    if num_bytes > MAX_SOURCE_BYTES:
        raise BadGrammar(f"has {num_bytes} bytes, at most {MAX_SOURCE_BYTES} may be compiled")
    try:
        matcher = LLMatcher(vocabulary.tokenizer, read(grammar.source), log_level=0, limits=_LIMITS)
    except ValueError as error:
        raise BadGrammar(_shortened(str(error))) from error
    _check(matcher)
    compiled = CompiledGrammar(matcher, vocabulary)
    _check_start(compiled)
    return compiled


def reason_of(matcher: LLMatcher) -> str:
    """Why a matcher cannot go on, in one line; empty if it can."""
    if not matcher.is_error():
        return ""
    return _shortened(matcher.get_error().replace("<non-verbose/>", "")) or "it failed"


def _check(matcher: LLMatcher) -> None:
    reason = reason_of(matcher)
    if reason:
        raise BadGrammar(reason)


def _check_start(compiled: CompiledGrammar) -> None:
    """The first token is where a grammar that matches nothing, or takes too much, is found out."""
    matcher = compiled.matcher()
    words = np.frombuffer(matcher.compute_bitmask(), np.int32)
    if "NoExtension" in reason_of(matcher):
        raise BadGrammar("no text matches it")
    _check(matcher)
    if not words.any():
        raise BadGrammar("no text of the model's tokens matches it")


def _shortened(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line)[:_MAX_REASON]
