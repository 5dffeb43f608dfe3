"""What the core's process counts, as metrics. Knows the catalog's names, not how they are
exposed.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.core.counts import Counts
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.listing import Waiting, WaitReason
from scheduler_svc.core.news import RequestStart
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.engine.pacing import StepTiming
from scheduler_svc.metrics.readings import Counter, Gauge, Histogram, render_all

_GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_live", "num_tokens_waiting"),
    *("kv_blocks_in_use", "kv_blocks_cached", "kv_blocks_fenced", "kv_blocks_free"),
    *("kv_cache_usage_perc", "steps_done", "epoch", "last_progress_timestamp_seconds"),
)
_TOTALS = (
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
    *("prompt_tokens", "generation_tokens", "replayed_tokens"),
)


class CoreReadings:
    """Counts what happens; takes over what the core counts itself when a Snapshot is made."""

    def __init__(self, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self.rejections = Counter("requests_rejected")
        self._waiting = Gauge("num_requests_waiting_by_reason")
        self._waiting_tokens = Gauge("num_tokens_waiting_by_reason")
        self._gauges = {name: Gauge(name) for name in _GAUGES}
        self._totals = {name: Counter(name) for name in _TOTALS}
        self._recoveries = Counter("recoveries")
        self._recovery_seconds = Histogram("recovery_seconds")
        self._worker_up = Gauge("worker_up")
        self._cache_config = Gauge("cache_config_info")
        self._step_seconds = Histogram("step_seconds")
        self._step_sequences = Histogram("step_sequences")
        self._step_tokens = Histogram("step_tokens")
        self._queue_seconds = Histogram("request_queue_time_seconds")
        self._compile_seconds = Histogram("grammar_compile_seconds")
        self._cached_grammars = Gauge("grammar_cache_grammars")
        self._cached_bytes = Gauge("grammar_cache_bytes")

    def note_plan(self, plan: StepPlan) -> None:
        """A plan was sent."""
        self._step_sequences.observe(len(plan.slots))
        self._step_tokens.observe(plan.num_decode_rows + plan.num_prefill_tokens)

    def note_step(self, timing: StepTiming) -> None:
        """A step completed."""
        self._step_seconds.observe(timing.seconds, timing.kind)

    def note_starts(self, starts: Iterable[RequestStart]) -> None:
        """Requests began to run."""
        for start in starts:
            self._queue_seconds.observe(start.queued_us / 1e6)

    def note_recovery(self, cause: str) -> None:
        """An epoch ended."""
        self._recoveries.add(1, cause)

    def note_recovered(self, parts: Mapping[str, float]) -> None:
        """Streams that waited for workers go on, after these seconds."""
        for part, seconds in parts.items():
            self._recovery_seconds.observe(seconds, part)

    def note_compiled(self, seconds: float, *, is_good: bool) -> None:
        """A grammar was compiled, or refused."""
        self._compile_seconds.observe(seconds, "compiled" if is_good else "refused")

    def note_grammar_cache(self, num_grammars: int, num_bytes: int) -> None:
        """What the cache of grammars holds."""
        self._cached_grammars.set(num_grammars)
        self._cached_bytes.set(num_bytes)

    def note_limits(self, limits: WorkerLimits) -> None:
        """An epoch began."""
        self._cache_config.clear()
        self._cache_config.set(1, str(limits.block_size), str(limits.num_usable_blocks))

    def note_ranks(self, num_ranks: int, *, are_up: bool) -> None:
        """Ranks came into an epoch, or left it."""
        for rank in range(num_ranks):
            self._worker_up.set(float(are_up), str(rank))

    def render(
        self,
        counts: Counts,
        *,
        waiting: Mapping[WaitReason, Waiting],
        num_steps: int,
        num_epochs: int,
        moved_s: float,
    ) -> list[control.Reading]:
        """All readings now; progress was made `moved_s` ago."""
        usable = max(1, counts.num_blocks)
        for reason, found in waiting.items():
            self._waiting.set(found.num_outputs, reason.value)
            self._waiting_tokens.set(found.num_tokens, reason.value)
        for name, value in (
            ("num_requests_running", counts.num_running),
            ("num_requests_waiting", counts.num_waiting),
            ("num_requests_live", counts.num_live),
            ("num_tokens_waiting", counts.num_waiting_tokens),
            ("kv_blocks_in_use", counts.num_blocks_in_use),
            ("kv_blocks_cached", counts.num_blocks_cached),
            ("kv_blocks_fenced", counts.num_blocks_fenced),
            ("kv_blocks_free", counts.num_blocks_free),
            ("kv_cache_usage_perc", counts.num_blocks_in_use / usable),
            ("steps_done", num_steps),
            ("epoch", num_epochs),
            ("last_progress_timestamp_seconds", self._wall_clock() - moved_s),
        ):
            self._gauges[name].set(value)
        for name, total in (
            ("prefix_cache_queries", counts.total_prompt_tokens),
            ("prefix_cache_hits", counts.total_cached_tokens),
            ("num_preemptions", counts.total_preemptions),
            ("prompt_tokens", counts.total_prompt_tokens),
            ("generation_tokens", counts.total_generated_tokens),
            ("replayed_tokens", counts.total_replayed_tokens),
        ):
            self._totals[name].set_total(total)
        return render_all(
            [
                *self._gauges.values(),
                *self._totals.values(),
                self.rejections,
                self._waiting,
                self._waiting_tokens,
                self._recoveries,
                self._recovery_seconds,
                self._worker_up,
                self._cache_config,
                self._step_seconds,
                self._step_sequences,
                self._step_tokens,
                self._queue_seconds,
                self._compile_seconds,
                self._cached_grammars,
                self._cached_bytes,
            ]
        )
