"""The one class the engine drives. Knows nothing of sockets, messages, clocks or processes.

Calls come from one thread. Every `now` is in seconds on one monotonic clock and never goes back.
"""

from scheduler_svc.core.counts import Counts
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import (
    Accepted,
    Attached,
    CancelAnswer,
    OutputSoFar,
    RequestStart,
    StepNews,
)
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.request import EndReason, NewRequest


class Core:
    """All requests of a replica and the step that comes next.

    The engine's cycle: intake (`submit`, `finish_output`, ...), `expire`, `plan` while `can_plan`,
    `apply` for each result. Ends and starts that any call causes are told once, by the next `apply`
    or `take_news`.
    """

    def __init__(self, policy: Policy, *, cache_root: bytes) -> None:
        raise NotImplementedError

    # --- epochs ---

    def start_epoch(self, limits: WorkerLimits, now: float) -> None:
        """Begins to plan for a rank group whose batch and KV contents are empty.

        Steps count from 1. Unfinished sequences wait again, from their known tokens. An epoch that
        still runs is left first.
        """
        raise NotImplementedError

    def leave_epoch(self, now: float, *, was_fatal: bool) -> None:
        """Stops planning: the workers are gone or out of step. Steps in flight are forgotten.

        With `was_fatal` (a worker died or hung) sequences in the steps in flight are suspects: after
        the second time without a new token one runs alone, after the third its request ends ERROR.
        """
        raise NotImplementedError

    @property
    def has_epoch(self) -> bool:
        """Whether there are workers to plan for."""
        raise NotImplementedError

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens of one sequence under the last epoch's limits; 0 before the first."""
        raise NotImplementedError

    # --- intake ---

    def submit(self, request: NewRequest, now: float) -> Accepted | Attached:
        """Takes a request, or attaches its owner to the known one with its name and body.

        Raises Refused, having kept nothing. Before the first epoch nothing can be checked, and new
        requests are refused with NoWorkers: the engine holds them back until then. When the known
        request lives and the resume holds more tokens than it, it goes on from the resume.
        """
        raise NotImplementedError

    def attach(
        self,
        *,
        tenant: str,
        request_id: str,
        owner: int,
        number: int,
        deadline: float | None,
        now: float,
    ) -> Attached:
        """Moves a known request to another owner, with a deadline of its own.

        Raises UnknownRequest, or InvalidField when the owner uses the number already.
        """
        raise NotImplementedError

    def detach(self, *, owner: int, number: int, cancel: bool, now: float) -> None:
        """The owner's reader left: the request lives on for its keep_for_s, or is forgotten at once.

        The number is free of it from here on. Ignores a number that the owner does not own.
        """
        raise NotImplementedError

    def cancel(self, *, tenant: str, request_id: str, now: float) -> CancelAnswer:
        """Ends a request; its owner is told by news. An unknown one is an answer, not an error."""
        raise NotImplementedError

    def finish_output(
        self,
        *,
        owner: int,
        number: int,
        output_index: int,
        num_tokens: int,
        reason: EndReason,
        stop_string: str,
        now: float,
    ) -> None:
        """The owner's word on where an output ends: fixes what is retained.

        Ends the sequence if it still runs; no further end is told. Ignores a number that the owner
        does not own, and an output that was settled before.
        """
        raise NotImplementedError

    def lose_owner(self, owner: int, now: float) -> None:
        """The owner's connection is gone for good: its requests are orphans, its numbers dead."""
        raise NotImplementedError

    def owner_unseen(self, owner: int, now: float) -> None:
        """The owner has not been heard of: nobody reads its requests, though it still owns them."""
        raise NotImplementedError

    def owner_seen(self, owner: int, now: float) -> None:
        """An unseen owner was heard of again."""
        raise NotImplementedError

    def refuse_new(self, *, draining: bool, no_workers: bool) -> None:
        """Says whether new requests are refused, and why; known ones go on."""
        raise NotImplementedError

    def end_all(self, reason: EndReason, now: float) -> None:
        """Ends every output that lives, such as with DRAINED at a drain's limit."""
        raise NotImplementedError

    # --- steps ---

    @property
    def can_plan(self) -> bool:
        """Whether an epoch runs and fewer than `max_steps_in_flight` steps are out."""
        raise NotImplementedError

    @property
    def has_work(self) -> bool:
        """Whether a sequence runs or waits."""
        raise NotImplementedError

    @property
    def num_steps_issued(self) -> int:
        """Steps planned in this epoch."""
        raise NotImplementedError

    @property
    def num_steps_done(self) -> int:
        """Steps applied in this epoch."""
        raise NotImplementedError

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when no row can run now: all wait for results, or there is no work."""
        raise NotImplementedError

    def apply(self, result: StepResult, now: float) -> StepNews:
        """Takes the oldest step's tokens in, and tells all news.

        Raises BadResult, having changed nothing, if the result does not answer that step.
        """
        raise NotImplementedError

    # --- time ---

    def next_expiry(self) -> float | None:
        """When `expire` has something to do next; may be early, never late."""
        raise NotImplementedError

    def expire(self, now: float) -> None:
        """Ends what is past its deadline or limit, forgets what was kept long enough."""
        raise NotImplementedError

    # --- readings ---

    def take_news(self) -> StepNews:
        """Ends and starts not told yet; its rows are empty."""
        raise NotImplementedError

    def output_so_far(
        self, *, owner: int, number: int, output_index: int, first_token_index: int
    ) -> OutputSoFar:
        """What an owner that missed news has to catch up with.

        Raises UnknownRequest for a number that the owner does not own.
        """
        raise NotImplementedError

    def start_of(self, *, owner: int, number: int) -> RequestStart | None:
        """The request's start, None while it has not run. Raises as `output_so_far` does."""
        raise NotImplementedError

    def counts(self) -> Counts:
        """Numbers for metrics; cheap."""
        raise NotImplementedError

    def flush_prefix_cache(self) -> None:
        """Forgets all cached prefixes; running sequences go on."""
        raise NotImplementedError
