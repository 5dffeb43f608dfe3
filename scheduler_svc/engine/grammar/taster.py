"""`python -m scheduler_svc.engine.grammar.taster MODEL_DIR`: compiles grammars before the core.

A process of its own, so that a grammar that never ends, takes all memory or breaks the library ends
this process and not the core. Reads Grammars from stdin, writes why each is refused to stdout;
nothing where it is not. Each is a frame, see `confined.py`.
"""

import resource
import sys
from pathlib import Path

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.confined import confine, read_frame, write_frame
from scheduler_svc.core.refusals import BadGrammar
from scheduler_svc.engine.grammar.compiler import CompiledGrammar, compile_grammar
from scheduler_svc.engine.grammar.deep_stack import run_deep
from scheduler_svc.engine.grammar.vocabulary import UnusableTokenizer, Vocabulary, load_vocabulary

_MAX_CPU_S = 15
_MAX_MORE_BYTES = 2**30
# tokens of text that are tried after the first
_NUM_TOKENS = 16


def taste(grammar: engine.Grammar, vocabulary: Vocabulary) -> str:
    """Why a grammar is refused; empty if it is not."""
    try:
        _follow_some(compile_grammar(grammar, vocabulary))
    except BadGrammar as error:
        return str(error) or "is refused"
    return ""


def _follow_some(compiled: CompiledGrammar) -> None:
    """Follows a text as an output would: what breaks there breaks here."""
    matcher = compiled.matcher()
    for _ in range(_NUM_TOKENS):
        allowed = matcher.compute_bitmask()
        token = next((8 * at + _first_bit(byte) for at, byte in enumerate(allowed) if byte), None)
        if token is None or matcher.is_stopped() or not matcher.consume_token(token):
            return


def _first_bit(byte: int) -> int:
    return (byte & -byte).bit_length() - 1


def _bound_cpu() -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + _MAX_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _serve(model_dir: Path) -> None:
    vocabulary, problem = None, ""
    try:
        vocabulary = load_vocabulary(model_dir)
    except UnusableTokenizer as error:
        problem = str(error)
    confine(_MAX_MORE_BYTES)
    write_frame(sys.stdout.buffer, b"")
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        _bound_cpu()
        if vocabulary is not None:
            problem = taste(engine.Grammar.FromString(frame), vocabulary)
        write_frame(sys.stdout.buffer, problem.encode())


if __name__ == "__main__":
    run_deep(lambda: _serve(Path(sys.argv[1])))
