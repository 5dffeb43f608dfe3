"""The loop of one rank: epochs and plans in, results out. Knows no socket and no tensor."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from worker_svc.batch import ResidentBatch
from worker_svc.channel import RankChannel
from worker_svc.channel_events import (
    EpochLeft,
    Event,
    MasksReceived,
    PlanReceived,
    ShutDown,
    Welcomed,
)
from worker_svc.plan_columns import BatchLimits, ProtocolFault
from worker_svc.rank_model import RankModel
from worker_svc.step_queue import StepQueue
from worker_svc.step_runner import StepRunner

_LOGGER = logging.getLogger(__name__)

_IDLE_WAIT_S = 60.0
_PREPARE_LIMIT_MS = 120_000


class InvalidWelcome(Exception):
    """The core asks for what this rank cannot be, or cannot be any more; only a restart helps."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """What the first Welcome made; it lasts as long as the process."""

    num_blocks: int
    num_tokenizer_ids: int
    runner: StepRunner
    batch: ResidentBatch
    queue: StepQueue


class RankLoop:
    """Serves epochs until the core or `stop_requested` ends it."""

    def __init__(
        self,
        *,
        channel: RankChannel,
        model: RankModel,
        stop_requested: Callable[[], bool],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._channel = channel
        self._model = model
        self._stop_requested = stop_requested
        self._clock_ns = clock_ns
        self._prepared: _Prepared | None = None
        self._is_stopping = False

    def run(self) -> None:
        """Says Hello and serves. Tells the core before an exception leaves this method."""
        self._channel.connect()
        try:
            while not (self._is_stopping and not self._is_flying()):
                event = self._channel.receive(0.0 if self._is_flying() else _IDLE_WAIT_S)
                self._is_stopping |= self._stop_requested()
                if event is not None:
                    self._take(event)
                if self._prepared is not None:
                    self._prepared.queue.advance()
        except Exception as error:
            step = 0 if self._prepared is None else self._prepared.queue.last_launched
            self._channel.fatal(f"{type(error).__name__}: {error}", step=step)
            raise
        self._channel.close()

    def _is_flying(self) -> bool:
        return self._prepared is not None and self._prepared.queue.is_flying

    def _take(self, event: Event) -> None:
        match event:
            case Welcomed():
                self._begin_epoch(event)
            case EpochLeft():
                self._leave_epoch()
            case ShutDown(reason):
                _LOGGER.info("the core asks this rank to stop: %s", reason)
                self._is_stopping = True
            case PlanReceived() | MasksReceived():
                try:
                    self._take_inputs(event)
                except ProtocolFault as fault:
                    _LOGGER.warning("leaving the epoch: %s", fault)
                    self._leave_epoch()
                    self._channel.leave(str(fault))

    def _take_inputs(self, event: PlanReceived | MasksReceived) -> None:
        assert self._prepared is not None, "inputs come only after a Welcome"
        if isinstance(event, PlanReceived):
            planned = self._prepared.batch.apply(event.plan)
            self._prepared.queue.add(planned, received_ns=event.received_ns)
        else:
            self._prepared.queue.add_masks(event.step, event.masks)

    def _leave_epoch(self) -> None:
        if self._prepared is not None:
            self._prepared.queue.drop_waiting()

    def _begin_epoch(self, welcomed: Welcomed) -> None:
        began_ns = self._clock_ns()
        if self._prepared is None:
            self._prepared = self._prepare(welcomed)
        prepared = self._prepared
        if (prepared.num_blocks, prepared.num_tokenizer_ids) != (
            welcomed.num_blocks,
            welcomed.num_tokenizer_ids,
        ):
            raise InvalidWelcome(f"{welcomed}, but this rank has {prepared.num_blocks} KV blocks")
        prepared.queue.drop_waiting()
        prepared.queue.finish()
        prepared.queue.max_in_flight = max(1, welcomed.max_steps_in_flight)
        prepared.runner.begin_epoch()
        prepared.batch.clear()
        self._channel.ready(prepare_us=(self._clock_ns() - began_ns) // 1000)

    def _prepare(self, welcomed: Welcomed) -> _Prepared:
        said = self._channel.introduction
        if not 2 <= welcomed.num_blocks <= said.num_blocks or welcomed.num_tokenizer_ids < 1:
            raise InvalidWelcome(f"{welcomed}, but this rank offered {said.num_blocks} KV blocks")
        self._channel.busy("allocating the KV cache", limit_ms=_PREPARE_LIMIT_MS)
        runner = self._model.prepare(
            num_blocks=welcomed.num_blocks,
            num_tokenizer_ids=min(welcomed.num_tokenizer_ids, said.vocab_size),
        )
        self._channel.introduction = replace(said, num_blocks=welcomed.num_blocks)
        limits = BatchLimits(
            max_num_seqs=said.max_num_seqs,
            max_num_batched_tokens=said.max_num_batched_tokens,
            max_model_len=said.max_model_len,
            block_size=said.block_size,
            num_blocks=welcomed.num_blocks,
            vocab_size=said.vocab_size,
        )
        _LOGGER.info("%d KV blocks of %d tokens", welcomed.num_blocks, said.block_size)
        return _Prepared(
            num_blocks=welcomed.num_blocks,
            num_tokenizer_ids=welcomed.num_tokenizer_ids,
            runner=runner,
            batch=ResidentBatch(limits, gathers_tables=not self._model.facts.keeps_tables),
            queue=StepQueue(runner=runner, channel=self._channel),
        )
