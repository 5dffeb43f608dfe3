"""Grammars over the byte tokenizer, and outputs that follow them at random."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import engine_pb2 as engine
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.plan import MaskedRow
from scheduler_svc.engine.grammar.compiler import CompiledGrammar, compile_grammar
from scheduler_svc.engine.grammar.masks import MaskOrder, StepMasks, make_masks
from scheduler_svc.engine.grammar.state import (
    CannotGoOn,
    OutputState,
    RequestGrammar,
    request_grammar,
)
from scheduler_svc.engine.grammar.vocabulary import Vocabulary, load_vocabulary
from tests.fakes.byte_tokenizer import END_ID, NUM_IDS, byte_tokenizer, write_byte_tokenizer

VOCAB_SIZE = NUM_IDS + 29
"""Rows of the model: more than the tokenizer has ids."""


def byte_vocabulary(folder: Path) -> Vocabulary:
    """The byte tokenizer's."""
    write_byte_tokenizer(folder)
    return load_vocabulary(folder)


def ids_of(text: str) -> list[int]:
    """The byte tokenizer's ids."""
    ids: list[int] = byte_tokenizer().encode(text).ids
    return ids


def compiled(vocabulary: Vocabulary, kind: str, source: str) -> CompiledGrammar:
    """Raises BadGrammar."""
    return compile_grammar(message(kind, source), vocabulary)


def message(kind: str, source: str) -> engine.Grammar:
    """A grammar as a frontend sends it."""
    return engine.Grammar(kind=engine.GrammarKind.Value(f"GRAMMAR_KIND_{kind}"), source=source)


def wanted(
    vocabulary: Vocabulary,
    kind: str,
    source: str,
    *,
    begins_after: int | None = None,
    **fields: Any,
) -> RequestGrammar:
    """The grammar of a request; end ids are the tokenizer's unless given."""
    grammar = message(kind, source)
    if begins_after is not None:
        grammar.begins_after_token_id = begins_after
    submit = engine.Submit(**{"grammar": grammar, "eos_token_ids": [END_ID], **fields})
    return request_grammar(compile_grammar(grammar, vocabulary), submit)


def row_of(
    state: OutputState, tokens: Sequence[int], *, first_index: int = 0, slot: int = 0
) -> MaskedRow:
    """A row behind these tokens."""
    return MaskedRow(
        row=slot,
        slot=slot,
        generation=1,
        grammar=state,
        first_index=first_index,
        tokens=np.array(tokens, np.int32),
    )


def masks_of(*rows: MaskedRow, vocab_size: int = VOCAB_SIZE) -> StepMasks:
    """The masks of a step with these rows."""
    order = MaskOrder(epoch=step.Epoch(counter=1), step=1, rows=rows, vocab_size=vocab_size)
    return make_masks(order)


def allowed_ids(masks: StepMasks, index: int = 0, *, vocab_size: int = VOCAB_SIZE) -> set[int]:
    """Ids that a row may choose."""
    num_words = -(-vocab_size // 32)
    words = np.frombuffer(masks.masks, "<i4").reshape(-1, num_words)[index]
    return set(np.flatnonzero(bits_of(words)).tolist())


def bits_of(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """One value for each id."""
    return np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little")


def wander(
    grammar: RequestGrammar, draw: Random, *, most: int, vocab_size: int = VOCAB_SIZE
) -> tuple[list[int], bool]:
    """Tokens of an output that chooses at random; whether an end id ended it.

    Raises CannotGoOn.
    """
    state, tokens = grammar.begin(), list[int]()
    ends = set(np.flatnonzero(bits_of(grammar.ends)).tolist())
    while len(tokens) < most:
        first = max(len(tokens) - 1, 0)
        masks = masks_of(row_of(state, tokens[first:], first_index=first), vocab_size=vocab_size)
        if masks.failed:
            raise CannotGoOn(masks.failed[0][1])
        token = draw.choice(sorted(allowed_ids(masks, vocab_size=vocab_size)))
        if token in ends:
            return tokens, True
        tokens.append(token)
    return tokens, False
