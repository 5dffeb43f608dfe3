"""What form an output must have: StructuredOutput, checked, in a syntax that the core compiles.

Whether a grammar is a good one only the core's compiler knows.
"""

import asyncio
import json
from collections.abc import Sequence

from llguidance.gbnf_to_lark import gbnf_to_lark

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.request import WantedForm
from scheduler_svc.frontend.text.reasoning import CLOSE_MARK
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.violations import Violations

MAX_GRAMMAR_BYTES = 64 * 1024
"""Of a schema, a grammar, all choices together."""
MAX_REGEX_BYTES = 16 * 1024
MAX_CHOICES = 1024
MAX_GBNF_RULES = 500
"""The time to translate grows with the square: these take 0.1 s."""
# Under a millisecond of work; more would hold up every stream of this process.
_MAX_INLINE_BYTES = 1024
_FIELD = "generation.structured_output"
_KINDS = "json_schema, json_object, regex, lark, gbnf or choice"
_ANY_OBJECT = '{"type": "object"}'
# Tokens that a template may write behind the end of reasoning that it skips.
_PROMPT_TAIL = 16


async def parse_structured(
    generation: api.Generation,
    *,
    is_served: bool,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
    end_token_ids: Sequence[int],
    violations: Violations,
) -> WantedForm | None:
    """The form of the outputs; None for any, or with a violation noted."""
    if not generation.HasField("structured_output"):
        return None
    wanted = generation.structured_output
    if not is_served:
        violations.add(_FIELD, "is not served by this replica")
        return None
    if not end_token_ids:
        violations.add(_FIELD, "needs an end id: ignore_eos is set and stop_token_ids is empty")
    kind = wanted.WhichOneof("kind")
    if kind is None:
        violations.add(_FIELD, f"exactly one of {_KINDS} is required")
        return None
    field = f"{_FIELD}.{kind}"
    grammar = await _grammar(wanted, kind, field, violations)
    if grammar is None:
        return None
    if wanted.after_reasoning and not _is_reasoning_closed(tokenizer, prompt_token_ids):
        mark = tokenizer.encode(CLOSE_MARK, add_special_tokens=False)
        if len(mark) != 1:
            rule = f"needs a model whose tokenizer has the token {CLOSE_MARK}"
            violations.add(f"{_FIELD}.after_reasoning", rule)
            return None
        grammar.begins_after_token_id = mark[0]
    return WantedForm(field=field, grammar=grammar)


def choice_grammar(texts: Sequence[str]) -> str:
    """One of the texts, in Lark."""
    # as JSON, which is how Lark's strings are written
    strings = " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts))
    return f"start: CHOICE\nCHOICE: {strings}\n"


async def _grammar(
    wanted: api.StructuredOutput, kind: str, field: str, violations: Violations
) -> engine.Grammar | None:
    if kind == "json_object":
        if not wanted.json_object:
            violations.add(field, "must be true where it is set")
        return _made(engine.GRAMMAR_KIND_JSON_SCHEMA, _ANY_OBJECT)
    if kind == "choice":
        return _choice(wanted.choice.texts, f"{field}.texts", violations)
    source: str = getattr(wanted, kind)
    most = MAX_REGEX_BYTES if kind == "regex" else MAX_GRAMMAR_BYTES
    num_bytes = len(source.encode())
    if num_bytes > most:
        violations.add(field, f"must have at most {most} bytes, has {num_bytes}")
        return None
    if kind == "json_schema":
        return _schema(source, field, violations)
    if kind == "gbnf":
        return await _gbnf(source, field, violations)
    is_regex = kind == "regex"
    return _made(engine.GRAMMAR_KIND_REGEX if is_regex else engine.GRAMMAR_KIND_LARK, source)


def _made(kind: engine.GrammarKind.ValueType, source: str) -> engine.Grammar:
    return engine.Grammar(kind=kind, source=source)


def _choice(texts: Sequence[str], field: str, violations: Violations) -> engine.Grammar | None:
    if not 1 <= len(texts) <= MAX_CHOICES:
        violations.add(field, f"must have 1 to {MAX_CHOICES} texts, has {len(texts)}")
        return None
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > MAX_GRAMMAR_BYTES:
        rule = f"must have at most {MAX_GRAMMAR_BYTES} bytes together, has {num_bytes}"
        violations.add(field, rule)
        return None
    return _made(engine.GRAMMAR_KIND_LARK, choice_grammar(texts))


def _schema(source: str, field: str, violations: Violations) -> engine.Grammar | None:
    try:
        schema = json.loads(source, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        violations.add(field, f"must be JSON: {why}")
        return None
    if not isinstance(schema, dict | bool):
        violations.add(field, "must be a JSON object or boolean")
        return None
    return _made(engine.GRAMMAR_KIND_JSON_SCHEMA, source)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


async def _gbnf(source: str, field: str, violations: Violations) -> engine.Grammar | None:
    num_rules = source.count("::=")
    if num_rules > MAX_GBNF_RULES:
        violations.add(field, f"must have at most {MAX_GBNF_RULES} rules, has {num_rules}")
        return None
    try:
        if len(source) <= _MAX_INLINE_BYTES:
            return _made(engine.GRAMMAR_KIND_LARK, gbnf_to_lark(source))
        return _made(engine.GRAMMAR_KIND_LARK, await asyncio.to_thread(gbnf_to_lark, source))
    except Exception as error:  # noqa: BLE001 - the library names no kinds
        why = " ".join(str(error).split())[:300] or type(error).__name__
        violations.add(field, f"must be GBNF: {why}")
        return None


def _is_reasoning_closed(tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> bool:
    """Whether the prompt ends behind reasoning, as templates write it when it is switched off."""
    tail = tokenizer.decode(prompt_token_ids[-_PROMPT_TAIL:], skip_special_tokens=False)
    return tail.rstrip().endswith(CLOSE_MARK)
