"""Grammars that were compiled, and reasons why others could not be. Knows nothing of compiling."""

from collections import OrderedDict

from scheduler_svc.core.refusals import BadGrammar
from scheduler_svc.engine.grammar.compiler import CompiledGrammar

Key = tuple[int, str]  # kind, source
Verdict = CompiledGrammar | BadGrammar

# What a grammar takes beside its text: a parser, and the lexer's states. Measured with schemas that
# take the most for their text: many bounded numbers, many levels.
_FIXED_BYTES = 64 * 1024
_BYTES_PER_SOURCE_BYTE = 192
_REFUSED_BYTES = 1024


class GrammarCache:
    """The verdicts used last, bounded in number and bytes; the newest one is always kept."""

    def __init__(self, *, max_grammars: int, max_bytes: int) -> None:
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._verdicts: OrderedDict[Key, Verdict] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._verdicts)

    def find(self, key: Key) -> Verdict | None:
        """The verdict on a grammar."""
        verdict = self._verdicts.get(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
        return verdict

    def put(self, key: Key, verdict: Verdict) -> None:
        """Keeps a verdict; those not used for the longest time make room."""
        self.drop(key)
        self._verdicts[key] = verdict
        self.num_bytes += _cost(key, verdict)
        while len(self) > 1 and self._is_full():
            self.drop(next(iter(self._verdicts)))

    def _is_full(self) -> bool:
        return len(self) > self._max_grammars or self.num_bytes > self._max_bytes

    def drop(self, key: Key) -> None:
        """Forgets a verdict; outputs that follow the grammar go on."""
        verdict = self._verdicts.pop(key, None)
        if verdict is not None:
            self.num_bytes -= _cost(key, verdict)


def _cost(key: Key, verdict: Verdict) -> int:
    num_bytes = len(key[1].encode())
    if isinstance(verdict, BadGrammar):
        return _REFUSED_BYTES + num_bytes
    return _FIXED_BYTES + _BYTES_PER_SOURCE_BYTE * num_bytes
