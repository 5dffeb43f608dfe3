"""Requests by name, by owner and by time, and how long ended ones are kept. Knows no steps."""

import heapq
from dataclasses import replace

from scheduler_svc.core.news import NO_OWNER
from scheduler_svc.core.records import WORD_BYTES
from scheduler_svc.core.refusals import InvalidField, UnknownRequest
from scheduler_svc.core.request import Request

# Wake-ups that no request needs any more, before they are swept.
_MAX_OUTDATED = 256


class Registry:
    """All requests that live or are retained."""

    def __init__(self, *, max_keep_for_s: float, max_retained_tokens: int) -> None:
        self._max_keep_for_s = max_keep_for_s
        self._max_retained_tokens = max_retained_tokens
        self._by_name: dict[tuple[str, str], Request] = {}
        self._by_owner: dict[int, dict[int, Request]] = {}
        self._retained: dict[int, Request] = {}  # by order of arrival; the oldest first
        self._num_ended = 0
        self._wake_ups: list[tuple[float, int, Request]] = []  # a heap
        self.num_retained_tokens = 0

    def __len__(self) -> int:
        """Requests that live or are retained."""
        return len(self._by_name)

    @property
    def num_live(self) -> int:
        """Requests with an output that has not ended."""
        return len(self._by_name) - self._num_ended

    def living(self) -> list[Request]:
        """Requests with an output that has not ended, in the order of arrival."""
        return [request for request in self._by_name.values() if request.num_live]

    def find(self, tenant: str, request_id: str) -> Request | None:
        """The request of a name."""
        return self._by_name.get((tenant, request_id))

    def named(self, tenant: str, request_id: str) -> Request:
        """The request of a name; raises UnknownRequest."""
        request = self.find(tenant, request_id)
        if request is None:
            raise UnknownRequest(request_id=request_id)
        return request

    def owned(self, owner: int, number: int) -> Request | None:
        """The request that an owner knows by a number."""
        return self._by_owner.get(owner, {}).get(number)

    def owned_by(self, owner: int) -> list[Request]:
        """All requests of an owner."""
        return list(self._by_owner.get(owner, {}).values())

    def check_number(self, owner: int, number: int) -> None:
        """Raises InvalidField unless the owner may use the number for another request."""
        if not 0 < number < 2**31:
            raise InvalidField("number", f"must be from 1 to 2^31 - 1, got {number}")
        if self.owned(owner, number) is not None:
            raise InvalidField("number", f"must be new, {number} is in use")

    def add(self, request: Request) -> None:
        """Keeps a new request."""
        self._by_name[request.key] = request
        self._own(request)
        self.watch(request)

    def move(self, request: Request, owner: int, number: int) -> None:
        """Gives a request another owner, or none."""
        if request.owner != NO_OWNER:
            numbers = self._by_owner[request.owner]
            del numbers[request.number]
            if not numbers:
                del self._by_owner[request.owner]
        request.owner, request.number = owner, number
        self._own(request)

    def note_ended(self, request: Request, now: float) -> None:
        """All outputs have ended: from here on time makes it be forgotten."""
        self._num_ended += 1
        if request.new.grammar is not None:
            request.new = replace(request.new, grammar=request.new.grammar.retired())
        if not request.has_reader:
            self.retain(request)
        elif request.keep_until is None:
            # Its owner settles it in no time; one that does not shall not keep it for ever.
            request.keep_until = now + self._max_keep_for_s
        self.watch(request)

    def retain(self, request: Request) -> None:
        """Counts an ended request as kept for later; forgets the oldest beyond the limit."""
        if request.order in self._retained:
            return
        request.num_retained_tokens = len(request.new.prompt) + sum(
            sequence.num_stored - sequence.num_prompt + len(sequence.records) // WORD_BYTES
            for sequence in request.sequences
        )
        # as many tokens as their records and their form take the memory of
        num_more_bytes = len(request.prompt_records)
        if request.new.grammar is not None:
            num_more_bytes += request.new.grammar.num_bytes
        request.num_retained_tokens += num_more_bytes // WORD_BYTES
        self._retained[request.order] = request
        self.num_retained_tokens += request.num_retained_tokens
        while self.num_retained_tokens > self._max_retained_tokens and self._retained:
            self.forget(next(iter(self._retained.values())))

    def release(self, request: Request) -> None:
        """Somebody reads it again: it is not dropped for the sake of others."""
        if self._retained.pop(request.order, None) is not None:
            self.num_retained_tokens -= request.num_retained_tokens

    def forget(self, request: Request) -> None:
        """Drops an ended request; does nothing if it was dropped before."""
        assert not request.num_live, "a living request cannot be forgotten"
        if self._by_name.get(request.key) is not request:
            return
        self.release(request)
        self.move(request, NO_OWNER, 0)
        self._num_ended -= 1
        request.keep_until = None
        del self._by_name[request.key]

    def watch(self, request: Request) -> None:
        """Makes sure that the request is found when it is due."""
        due = request.next_due
        if due is not None:
            heapq.heappush(self._wake_ups, (due, request.order, request))
            if len(self._wake_ups) > 4 * len(self._by_name) + _MAX_OUTDATED:
                self._sweep()

    def next_due(self) -> float | None:
        """When the next request may be due."""
        return self._wake_ups[0][0] if self._wake_ups else None

    def pop_due(self, now: float) -> list[Request]:
        """Requests for which something is due; the caller watches those that live on again."""
        due: dict[int, Request] = {}
        while self._wake_ups and self._wake_ups[0][0] <= now:
            _, _, request = heapq.heappop(self._wake_ups)
            if request.next_due is not None:
                due[request.order] = request
        return list(due.values())

    def _own(self, request: Request) -> None:
        if request.owner != NO_OWNER:
            self._by_owner.setdefault(request.owner, {})[request.number] = request

    def _sweep(self) -> None:
        standing = ((request.next_due, request) for request in self._by_name.values())
        self._wake_ups = [
            (due, request.order, request) for due, request in standing if due is not None
        ]
        heapq.heapify(self._wake_ups)
