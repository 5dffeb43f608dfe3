"""Who calls this frontend, and how many requests each tenant has open in it. Knows no method.

A tenant's limit is checked here before any work is done for a call; the core checks it again, with
what other frontends have open and what runs on without a stream (`keep_for_s`). A stream that goes
on, by Attach or `resume`, was accepted before; it is refused only at twice the limit, lest `resume`
be a way around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler_svc.frontend.calls import Context
from scheduler_svc.frontend.errors import Overloaded
from scheduler_svc.security.key_records import DEFAULT_TENANT, Caller
from scheduler_svc.security.keys import KeyRing

_RETRY_AFTER_MS = 1000
_ANYBODY = Caller(tenant=DEFAULT_TENANT)


class Callers:
    """Finds callers by their keys; without keys everybody is the same."""

    def __init__(self, keys: KeyRing | None) -> None:
        self._keys = keys
        self._num_open: Counter[str] = Counter()

    def of(self, context: Context) -> Caller:
        """Who calls. Raises Unauthenticated."""
        if self._keys is None:
            return _ANYBODY
        return self._keys.caller(context.invocation_metadata() or ())

    @contextmanager
    def request(self, context: Context, *, is_new: bool) -> Iterator[Caller]:
        """Around a request's stream: counts it. Raises Unauthenticated, or Overloaded."""
        caller = self.of(context)
        num_open, limit = self._num_open[caller.tenant], caller.max_requests
        if limit and num_open >= (limit if is_new else 2 * limit):
            raise Overloaded(
                f"the tenant has {num_open} open requests, {limit} at most",
                reason="TENANT_LIMIT",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        self._num_open[caller.tenant] += 1
        try:
            yield caller
        finally:
            self._num_open[caller.tenant] -= 1
            if not self._num_open[caller.tenant]:
                del self._num_open[caller.tenant]
