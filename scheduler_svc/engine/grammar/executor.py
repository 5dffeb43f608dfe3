"""The threads in which grammars are compiled and masks are made. Knows no socket and no request.

The loop asks and goes on; a byte on `fileno` says that something is done.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.refusals import BadGrammar, QueueFull
from scheduler_svc.engine.grammar.cache import GrammarCache, Key, Verdict
from scheduler_svc.engine.grammar.compiler import CompiledGrammar, compile_grammar
from scheduler_svc.engine.grammar.deep_stack import deep_stacks
from scheduler_svc.engine.grammar.masks import MaskOrder, StepMasks, is_quick, make_masks
from scheduler_svc.engine.grammar.tasting import Taster
from scheduler_svc.engine.grammar.vocabulary import UnusableTokenizer, Vocabulary, load_vocabulary

MAX_COMPILING = 256
_RETRY_AFTER_S = 1.0
_MOST_THREADS = 2  # each with a process beside it


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """A grammar that was compiled or refused, for the readings."""

    key: Key
    verdict: Verdict
    seconds: float


class GrammarExecutor:
    """Used by the loop's thread alone. Starts its threads when they are first needed."""

    def __init__(
        self,
        model_dir: Path,
        *,
        cache: GrammarCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model_dir = model_dir
        self._clock = clock
        self.cache = cache
        num_threads = max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))
        self._compilers = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar-compiler")
        # one thread: a state's masks are made in the order of its steps
        self._mask_maker = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        self._all_tasters = [Taster(model_dir) for _ in range(num_threads)]
        self._tasters: SimpleQueue[Taster] = SimpleQueue()
        for taster in self._all_tasters:
            self._tasters.put(taster)
        self._compiling: set[Key] = set()
        self._compiled: deque[Compilation] = deque()
        self._masks: deque[StepMasks] = deque()
        self._num_mask_orders = 0  # not taken yet; their states are the thread's
        self._vocabulary: Vocabulary | None = None
        self._loading = threading.Lock()
        self._wakes, self._woken = socket.socketpair()
        for end in (self._wakes, self._woken):
            end.setblocking(False)

    def fileno(self) -> int:
        """Readable once something is done."""
        return self._woken.fileno()

    def quiet(self) -> None:
        """Forgets that the loop was woken; it looks at everything after this."""
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def close(self) -> None:
        """Ends the threads; what they do is dropped."""
        for pool in (self._compilers, self._mask_maker):
            pool.shutdown(wait=False, cancel_futures=True)
        for taster in self._all_tasters:
            taster.close()
        self._wakes.close()
        self._woken.close()

    # --- grammars ---

    def find(self, grammar: engine.Grammar, *, must: bool) -> CompiledGrammar | None:
        """The compiled grammar; None while it is being compiled, from now on if not before.

        Raises BadGrammar, or QueueFull when too many are being compiled, unless it `must` be.
        """
        key = (int(grammar.kind), grammar.source)
        verdict = self.cache.find(key)
        if isinstance(verdict, BadGrammar):
            raise BadGrammar(str(verdict))
        if verdict is None and key not in self._compiling:
            if len(self._compiling) >= MAX_COMPILING and not must:
                raise QueueFull(
                    what="grammars",
                    waiting=len(self._compiling),
                    limit=MAX_COMPILING,
                    retry_after_s=_RETRY_AFTER_S,
                )
            self._compiling.add(key)
            with deep_stacks():
                self._compilers.submit(self._compile, key, is_known=must)
        return verdict

    def settle(self) -> list[Compilation]:
        """Takes over what was compiled since the last call."""
        taken = []
        while self._compiled:
            done = self._compiled.popleft()
            self._compiling.discard(done.key)
            self.cache.put(done.key, done.verdict)
            taken.append(done)
        return taken

    def forget(self, grammar: engine.Grammar) -> None:
        """An output could not go on: whoever asks next gets the grammar compiled anew."""
        self.cache.drop((int(grammar.kind), grammar.source))

    # --- masks ---

    def order_masks(self, order: MaskOrder) -> None:
        """Lets the masks of a step be made: at once where that is quick, else in the thread."""
        if not self._num_mask_orders and is_quick(order):
            self._masks.append(make_masks(order))
            self._num_mask_orders += 1
            return
        self._num_mask_orders += 1
        with deep_stacks():
            self._mask_maker.submit(self._make_masks, order)

    def take_masks(self) -> list[StepMasks]:
        """What was made since the last call."""
        taken = []
        while self._masks:
            taken.append(self._masks.popleft())
            self._num_mask_orders -= 1
        return taken

    # --- in threads ---

    def _compile(self, key: Key, *, is_known: bool) -> None:
        began = self._clock()
        kind, source = key
        try:
            grammar = engine.Grammar(kind=engine.GrammarKind.ValueType(kind), source=source)
            if not is_known:  # else an earlier core took it
                self._taste(grammar)
            verdict: Verdict = compile_grammar(grammar, self._loaded())
        except BadGrammar as error:
            verdict = error
        except UnusableTokenizer as error:
            verdict = BadGrammar(str(error))
        except BaseException as error:  # noqa: BLE001 - also a panic: the request must be answered
            verdict = BadGrammar(f"cannot be compiled: {error!r:.300}")
        self._compiled.append(Compilation(key, verdict, self._clock() - began))
        self._wake()

    def _taste(self, grammar: engine.Grammar) -> None:
        taster = self._tasters.get()
        try:
            taster.taste(grammar)
        finally:
            self._tasters.put(taster)

    def _make_masks(self, order: MaskOrder) -> None:
        self._masks.append(make_masks(order))
        self._wake()

    def _loaded(self) -> Vocabulary:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = load_vocabulary(self._model_dir)
            return self._vocabulary

    def _wake(self) -> None:
        with suppress(OSError):  # it is readable already, or closed
            self._wakes.send(b"\0")
