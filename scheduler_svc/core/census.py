"""Requests that have not run yet, counted by class and tenant. Knows no order among them."""

from collections import Counter
from dataclasses import dataclass

from scheduler_svc.core.limits import Policy
from scheduler_svc.core.request import Request

_Group = tuple[int, str]  # priority, tenant


@dataclass(frozen=True, slots=True)
class Ahead:
    """What runs before a request."""

    num_requests: int
    num_tokens: int


class Census:
    """Counts of new requests and their prompts' tokens."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._requests: Counter[_Group] = Counter()
        self._tokens: Counter[_Group] = Counter()
        self._requests_of: Counter[str] = Counter()
        self._tokens_of: Counter[str] = Counter()
        self._weights: dict[str, float] = {}  # of the tenants that have new requests

    def enter(self, request: Request) -> None:
        """A request waits that has not run."""
        self._count(request, 1)
        self._weights[request.new.tenant] = request.new.tenant_weight

    def leave(self, request: Request) -> None:
        """It runs for the first time, or ends without."""
        self._count(request, -1)
        priority, tenant = request.new.priority, request.new.tenant
        if not self._requests[priority, tenant]:
            del self._requests[priority, tenant], self._tokens[priority, tenant]
        if not self._requests_of[tenant]:
            del self._requests_of[tenant], self._tokens_of[tenant], self._weights[tenant]

    def num_requests_of(self, tenant: str) -> int:
        """A tenant's new requests."""
        return self._requests_of[tenant]

    def tenants(self) -> list[str]:
        """Those with new requests."""
        return list(self._requests_of)

    def fills_share(self, tenant: str, *, weight: float, num_tokens: int, policy: Policy) -> bool:
        """Whether a tenant that adds a prompt exceeds its share of the queue, by weight."""
        total = sum((self._weights | {tenant: weight}).values())
        share = weight / total
        too_many = self._requests_of[tenant] >= share * policy.max_queue_requests
        tokens = self._tokens_of[tenant] + num_tokens
        return too_many or tokens > share * policy.max_queue_tokens

    def ahead_of(self, tenant: str, priority: int, *, weight: float = 1.0) -> Ahead:
        """What would run before a new request of a tenant and class.

        Tenants of one class take turns, as many of one's as its weight is of the other's.
        """
        turn = self._requests[priority, tenant] + 1
        num_requests = num_tokens = 0.0
        for (each_priority, each_tenant), count in self._requests.items():
            if each_priority > priority:
                continue
            before: float = count
            if each_priority == priority and each_tenant != tenant:
                before = min(count, turn * self._weights[each_tenant] / weight)
            num_requests += before
            num_tokens += self._tokens[each_priority, each_tenant] * before / count
        return Ahead(round(num_requests), round(num_tokens))

    def _count(self, request: Request, sign: int) -> None:
        num_tokens = sign * len(request.new.prompt)
        group = (request.new.priority, request.new.tenant)
        self.num_requests += sign
        self.num_tokens += num_tokens
        self._requests[group] += sign
        self._tokens[group] += num_tokens
        self._requests_of[request.new.tenant] += sign
        self._tokens_of[request.new.tenant] += num_tokens
