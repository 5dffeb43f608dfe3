"""Where sequences wait: in the queue, as suspects, or held for another's sake. Knows no slots.

An output is *held* while it would run for nothing: the prompt it shares with the first output of
its request is not computed yet, or nobody reads the request and it has made its tokens for that.
"""

from scheduler_svc.core.census import Census
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Phase, Sequence
from scheduler_svc.core.suspicion import Suspicion
from scheduler_svc.core.waiting import WaitingQueue


class WaitingRoom:
    """All sequences that live and have no slot."""

    def __init__(self, queue: WaitingQueue) -> None:
        self.queue = queue
        self.suspicion = Suspicion()
        self.census = Census()

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a slot; held ones do not."""
        return len(self.queue) + len(self.suspicion.waiting)

    def enter(self, request: Request, now: float) -> None:
        """Lets a new request's sequences wait."""
        self.census.enter(request)
        self.hold_followers(request)
        for sequence in request.sequences:
            self.wait(sequence, now)

    def note_begun(self, request: Request) -> None:
        """The request runs for the first time, or ends without: it is not new any more."""
        self.census.leave(request)

    def wait(self, sequence: Sequence, now: float) -> None:
        """Lets a sequence wait for a slot, or holds it if it has to be held."""
        request = sequence.request
        is_follower = request.are_followers_held and sequence is not request.leader
        if is_follower or sequence.is_over_pause:
            sequence.phase = Phase.HELD
            return
        sequence.phase = Phase.WAITING
        sequence.offer = None
        # A request that has not run was passed as often as any of its outputs was.
        is_new = request.start is None
        passes = (each.num_times_passed for each in request.sequences) if is_new else ()
        sequence.num_times_passed = max(passes, default=0)
        if sequence.is_suspect:
            self.suspicion.waiting.append(sequence)
        else:
            self.queue.push(sequence, now)

    def leave(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out."""
        if sequence.ticket:
            self.queue.remove(sequence)
        else:
            self.suspicion.waiting.remove(sequence)

    def hold_followers(self, request: Request) -> None:
        """From here on, all outputs but the first living one are to wait for that one's prompt."""
        # no output's first token may come before the prompt's records, which the first one brings
        is_shared = request.shares_prompt or bool(request.next_prompt_record)
        request.are_followers_held = request.num_live > 1 and is_shared

    def release_followers(self, request: Request, now: float) -> None:
        """The prompt's computation is issued: the other outputs may run."""
        if request.are_followers_held:
            request.are_followers_held = False
            self.release_held(request, now)

    def pass_on_lead(self, request: Request, now: float) -> None:
        """The one that was to compute the prompt has ended: the next one does."""
        if request.are_followers_held:
            self.hold_followers(request)
            self.release_held(request, now)

    def restart(self, request: Request, now: float) -> None:
        """The workers have lost the prompt: lets all outputs wait as at the beginning."""
        self.hold_followers(request)
        for sequence in request.sequences:
            if sequence.phase is Phase.WAITING:
                self.leave(sequence)
            if sequence.end is None:
                self.wait(sequence, now)

    def release_held(self, request: Request, now: float) -> None:
        """Lets held sequences wait that have no reason any more to be held."""
        for sequence in request.sequences:
            if sequence.phase is Phase.HELD:
                self.wait(sequence, now)
