"""What the loop asks about grammars: a Submit's, and the masks of steps. Asks, counts and says no;
computes nothing.
"""

from __future__ import annotations

from pathlib import Path

from octavo.internal.v1 import engine_pb2 as engine
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.config import ServiceConfig
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.refusals import BadGrammar, Refused
from scheduler_svc.engine.core_readings import CoreReadings
from scheduler_svc.engine.grammar.cache import GrammarCache
from scheduler_svc.engine.grammar.executor import GrammarExecutor
from scheduler_svc.engine.grammar.masks import MaskOrder, StepMasks
from scheduler_svc.engine.grammar.state import OutputState, RequestGrammar, request_grammar

_MIB = 2**20


class Grammars:
    """Used by the loop's thread alone."""

    def __init__(
        self, executor: GrammarExecutor, readings: CoreReadings, *, limit_s: float, is_on: bool
    ) -> None:
        """A Submit waits `limit_s` for its grammar, at most."""
        self._executor = executor
        self._readings = readings
        self._is_on = is_on
        self.limit_s = limit_s

    def fileno(self) -> int:
        """Readable once `settle` or `take_masks` has something."""
        return self._executor.fileno()

    def quiet(self) -> None:
        """Forgets that the loop was woken; it looks at everything after this."""
        self._executor.quiet()

    def close(self) -> None:
        """Ends the threads."""
        self._executor.close()

    def of(self, submit: engine.Submit) -> RequestGrammar | None:
        """The grammar of a Submit; None if it has none, or it is being compiled.

        Raises BadGrammar, or QueueFull when too many are being compiled.
        """
        if not submit.HasField("grammar"):
            return None
        if not self._is_on:
            raise BadGrammar("structured output is switched off on this replica")
        compiled = self._executor.find(submit.grammar, must=submit.was_accepted)
        return None if compiled is None else request_grammar(compiled, submit)

    def settle(self) -> bool:
        """Takes over what was compiled; whether that was anything."""
        done = self._executor.settle()
        for each in done:
            is_good = not isinstance(each.verdict, BadGrammar)
            self._readings.note_compiled(each.seconds, is_good=is_good)
        if done:
            cache = self._executor.cache
            self._readings.note_grammar_cache(len(cache), cache.num_bytes)
        return bool(done)

    def overdue(self) -> Refused:
        """What to say when a grammar was not compiled in time."""
        return BadGrammar(f"was not compiled within {self.limit_s:g} s")

    def order_masks(self, plan: StepPlan, epoch: step.Epoch, *, vocab_size: int) -> None:
        """Lets the masks that a plan waits for be made."""
        self._executor.order_masks(
            MaskOrder(epoch=epoch, step=plan.step, rows=plan.masked_rows, vocab_size=vocab_size)
        )

    def take_masks(self) -> list[StepMasks]:
        """The masks made since the last call."""
        taken = self._executor.take_masks()
        for done in taken:
            for row, _ in done.failed:
                if isinstance(row.grammar, OutputState):
                    self._executor.forget(row.grammar.grammar.message)
        return taken


def build_grammars(config: ServiceConfig, readings: CoreReadings) -> Grammars:
    """What the settings say."""
    cache = GrammarCache(
        max_grammars=config.grammar_cache_size, max_bytes=config.grammar_cache_mib * _MIB
    )
    return Grammars(
        GrammarExecutor(Path(config.model), cache=cache),
        readings,
        limit_s=config.grammar_compile_limit,
        is_on=config.structured_output == "on",
    )
