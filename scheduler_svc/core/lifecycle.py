"""What happens to sequences: start, preemption, pause, end. Decides none of it.

Each change of a sequence's phase is one method here (or in `waiting_room`), so that slot, blocks,
queue, counts and news always change together.
"""

from scheduler_svc.core.epoch import Departure, Epoch
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.news import NewsBox, OutputEnd, RequestStart
from scheduler_svc.core.prefix_cache import Match
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import EndReason, Request
from scheduler_svc.core.sequence import Phase, Sequence
from scheduler_svc.core.stays import Stays
from scheduler_svc.core.tenant_hits import TenantHits
from scheduler_svc.core.tenants import TenantShares
from scheduler_svc.core.waiting_room import WaitingRoom

_TOO_SMALL_MESSAGE = "the workers that are there now have no room for the prompt"


class Lifecycle:
    """Moves sequences through their phases."""

    def __init__(
        self, *, room: WaitingRoom, shares: TenantShares, registry: Registry, news: NewsBox
    ) -> None:
        self.room = room
        self.shares = shares
        self.registry = registry
        self.news = news
        self.epoch: Epoch | None = None
        self.stays = Stays()
        self.tenant_hits = TenantHits()

        self.total_prompt_tokens = 0
        self.total_cached_tokens = 0
        self.total_preemptions = 0
        self.total_replayed_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a sequence runs or waits."""
        is_running = self.epoch is not None and self.epoch.batch.num_occupied > 0
        return is_running or self.room.num_waiting > 0

    def num_known(self, sequence: Sequence) -> int:
        """Known tokens, wherever they are."""
        if self.epoch is not None and sequence.slot >= 0:
            return int(self.epoch.batch.known_length[sequence.slot])
        return sequence.num_stored

    # --- running ---

    def start(self, epoch: Epoch, sequence: Sequence, match: Match, now: float) -> None:
        """Gives a waiting sequence a slot, the matched blocks and new ones for its known tokens.

        The caller has made sure that there are enough.
        """
        self.room.leave(sequence)
        # Held first, so that taking new ones cannot evict them.
        epoch.pool.hold(match.blocks)
        num_new = epoch.num_blocks_for(sequence.num_stored) - len(match.blocks)
        taken = epoch.pool.take(num_new)
        assert taken is not None, "a sequence starts without room for it"
        sequence.blocks = match.blocks + taken
        sequence.link = match.link if sequence.request.stores_cache else None
        sequence.num_linked = len(match.blocks)
        sequence.phase = Phase.RUNNING
        sequence.started_at = now
        num_cached = len(match.blocks) * epoch.limits.block_size
        epoch.batch.occupy(sequence, num_computed=num_cached)
        self._note_replay(sequence, num_cached)
        epoch.prefilling.append(sequence)
        if sequence.is_suspect:
            self.room.suspicion.alone = sequence
        if sequence.request.start is None:
            self._begin(sequence.request, min(num_cached, sequence.num_prompt), now)

    def preempt(self, epoch: Epoch, sequence: Sequence, now: float) -> None:
        """Takes slot and blocks from a running sequence; it waits again once its tokens are in."""
        sequence.num_preemptions += 1
        self.total_preemptions += 1
        self.pause(epoch, sequence, now)

    def pause(self, epoch: Epoch, sequence: Sequence, now: float) -> None:
        """As `preempt`, for a sequence that made enough tokens without a reader."""
        if epoch.is_idle(sequence.slot):
            self._depart(epoch, sequence)
            self.room.wait(sequence, now)
        else:
            self._depart(epoch, sequence, is_awaited=True)
            sequence.phase = Phase.LEAVING

    def recompute(self, epoch: Epoch, sequence: Sequence, now: float) -> None:
        """Lets a sequence with a slot wait again at once: tokens in flight are dropped."""
        self._drop(epoch, sequence)
        self.room.wait(sequence, now)

    def withdraw(self, sequence: Sequence) -> None:
        """Takes a living sequence out of queue and batch; the caller lets it wait or ends it."""
        self._drop_anywhere(sequence)
        sequence.phase = Phase.HELD

    def land(self, epoch: Epoch, now: float) -> None:
        """Lets go of slots and blocks that no step in flight can touch any more."""
        landed = [gone for gone in epoch.departures if gone.last_step <= epoch.num_done]
        if not landed:
            return
        epoch.departures = [gone for gone in epoch.departures if gone.last_step > epoch.num_done]
        for gone in landed:
            epoch.pool.lift(gone.blocks)
            if gone.sequence is not None:
                epoch.batch.part(gone.sequence)
            epoch.batch.vacate(gone.slot)
        for gone in landed:
            if gone.sequence is not None:
                self.room.wait(gone.sequence, now)

    # --- the end ---

    def end(
        self,
        sequence: Sequence,
        reason: EndReason,
        now: float,
        *,
        stop_token_id: int | None = None,
        message: str = "",
        is_told: bool = True,
    ) -> None:
        """Ends an output, wherever it is; it is told once, unless the owner is who ends it."""
        if sequence.phase is Phase.RUNNING:
            self.stays.note(now - sequence.started_at)
        self._drop_anywhere(sequence)
        request = sequence.request
        was_leader = sequence is request.leader
        sequence.phase = Phase.ENDED
        sequence.grammar = None
        sequence.end = OutputEnd(
            owner=request.owner,
            number=request.number,
            output_index=sequence.output_index,
            num_tokens=sequence.num_stored - sequence.num_prompt,
            reason=reason,
            stop_token_id=stop_token_id,
            message=message,
            num_preemptions=sequence.num_preemptions,
        )
        if is_told:
            self.news.ends.append(sequence.end)
        request.num_live -= 1
        if not request.num_live:
            self._note_ended(request, now)
        elif was_leader:
            self.room.pass_on_lead(request, now)

    def end_request(
        self, request: Request, reason: EndReason, now: float, *, message: str = ""
    ) -> None:
        """Ends every output that lives."""
        # The followers first: no point in letting one lead.
        for sequence in reversed(request.sequences):
            if sequence.end is None:
                self.end(sequence, reason, now, message=message)

    def end_if_complete(self, sequence: Sequence, now: float) -> None:
        """Ends an output that does not run if its known tokens leave nothing to generate."""
        length = sequence.num_stored
        if length > sequence.num_prompt:
            token = sequence.token_at(length - 1)
            reason = sequence.end_reason_of(token, length - 1)
            if reason is not None:
                self.end(sequence, reason, now, stop_token_id=token)
                return
        if length >= sequence.limit:
            self.end(sequence, EndReason.LENGTH, now)

    # --- epochs ---

    def abandon_epoch(self, now: float) -> None:
        """Takes every sequence off the workers; each waits again, from its known tokens."""
        epoch, self.epoch = self.epoch, None
        self.room.suspicion.alone = None
        if epoch is None:
            return
        running = epoch.batch.occupied()
        for sequence in running:
            epoch.batch.part(sequence)
            sequence.blocks, sequence.link, sequence.num_linked = [], None, 0
            sequence.phase = Phase.HELD
        for request in {sequence.request.order: sequence.request for sequence in running}.values():
            self.room.restart(request, now)

    def fit(self, request: Request, limits: WorkerLimits, now: float) -> None:
        """Holds a waiting request to an epoch's limits, which may be lower than the last one's."""
        for sequence in request.sequences:
            sequence.limit = min(sequence.limit, limits.max_sequence_tokens)
            if sequence.end is None and sequence.num_stored >= sequence.limit:
                is_empty = sequence.num_stored == sequence.num_prompt
                reason = EndReason.ERROR if is_empty else EndReason.LENGTH
                self.end(sequence, reason, now, message=_TOO_SMALL_MESSAGE if is_empty else "")

    # --- within ---

    def _begin(self, request: Request, num_cached: int, now: float) -> None:
        request.start = RequestStart(
            owner=request.owner,
            number=request.number,
            num_cached_tokens=num_cached,
            queued_us=max(0, int((now - request.arrived_at) * 1e6)),
        )
        self.news.starts.append(request.start)
        if not any(len(output.tokens) for output in request.new.resume):
            # one that brings tokens was counted where it made them
            self.total_prompt_tokens += len(request.new.prompt)
            self.total_cached_tokens += num_cached
        self.tenant_hits.note(
            request.new.tenant,
            num_prompt_tokens=len(request.new.prompt),
            num_cached_tokens=num_cached,
        )
        self.room.note_begun(request)

    def _note_replay(self, sequence: Sequence, num_cached: int) -> None:
        """Counts what was computed once already: here before, or elsewhere if it was resumed."""
        if sequence.has_run or sequence.num_stored > sequence.num_prompt:
            self.total_replayed_tokens += sequence.num_stored - num_cached
        sequence.has_run = True

    def _note_ended(self, request: Request, now: float) -> None:
        if request.start is None:
            self.room.note_begun(request)
        self.shares.leave(request.tenant_index)
        self.registry.note_ended(request, now)

    def _drop_anywhere(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.WAITING:
            self.room.leave(sequence)
        elif sequence.phase in {Phase.RUNNING, Phase.LEAVING}:
            assert self.epoch is not None, "a sequence runs without workers"
            self._drop(self.epoch, sequence)

    def _drop(self, epoch: Epoch, sequence: Sequence) -> None:
        if sequence.phase is Phase.RUNNING:
            self._depart(epoch, sequence)
            return
        for index, gone in enumerate(epoch.departures):
            if gone.sequence is sequence:
                epoch.batch.part(sequence)
                epoch.departures[index] = gone.without_sequence()

    def _depart(self, epoch: Epoch, sequence: Sequence, *, is_awaited: bool = False) -> None:
        batch, slot, blocks = epoch.batch, sequence.slot, tuple(sequence.blocks)
        is_idle = epoch.is_idle(slot)
        epoch.pool.release(blocks, fence=not is_idle)
        sequence.blocks, sequence.link, sequence.num_linked = [], None, 0
        if sequence in epoch.prefilling:
            epoch.prefilling.remove(sequence)
        if self.room.suspicion.alone is sequence:
            self.room.suspicion.alone = None
        if is_awaited:
            batch.set_decodes(slot, False)
            batch.update_publish_length(sequence)
        else:
            batch.part(sequence)
        if is_idle:
            batch.vacate(slot)
        else:
            awaited = sequence if is_awaited else None
            epoch.departures.append(
                Departure(
                    last_step=int(batch.last_step[slot]),
                    slot=slot,
                    blocks=blocks,
                    sequence=awaited,
                )
            )
