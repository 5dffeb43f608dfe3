"""How much each tenant was served: virtual counters of computed tokens. Knows no queue, no request.

The tenant with the lowest counter is served next; a token costs one by the tenant's weight, so that
a tenant of weight 2 is served twice the tokens of one of weight 1. One that comes back from
idleness is lifted to the lowest counter of the active ones: idle time earns no credit, and what it
had beyond its share stays owed. (Virtual token counters: "Fairness in Serving Large Language
Models", OSDI 2024.)
"""

import numpy as np
import numpy.typing as npt

# Idle tenants remembered before the ones that owe nothing are forgotten.
_MAX_IDLE = 4096


class TenantShares:
    """Counters by tenant. A tenant is known by a small index while it is active."""

    def __init__(self) -> None:
        self._index_by_tenant: dict[str, int] = {}
        self._tenant_by_index: dict[int, str] = {}
        self._served = np.zeros(16, np.float64)
        self._cost = np.ones(16, np.float64)  # of a token: one by the tenant's weight
        self._num_active_uses = np.zeros(16, np.int64)
        self._unused: list[int] = list(range(15, -1, -1))
        # What everybody active had been served at least, when last looked at.
        self._floor = 0.0

    def num_uses(self, tenant: str) -> int:
        """Live requests of a tenant."""
        index = self._index_by_tenant.get(tenant)
        return 0 if index is None else int(self._num_active_uses[index])

    def enter(self, tenant: str, *, weight: float = 1.0) -> int:
        """Counts one more live request of a tenant; its index, until as many have left.

        The weight holds from here on, also for what the tenant has here already.
        """
        index = self._index_by_tenant.get(tenant)
        if index is None:
            index = self._remember(tenant)
        if not self._num_active_uses[index]:
            self._served[index] = max(self._served[index], self._lowest_active())
        self._num_active_uses[index] += 1
        self._cost[index] = 1 / weight
        return index

    def leave(self, index: int) -> None:
        """Counts one live request less."""
        assert self._num_active_uses[index] > 0, "a tenant has fewer requests than none"
        if self._num_active_uses[index] == 1:
            self._lowest_active()
        self._num_active_uses[index] -= 1

    def served(self, index: int) -> float:
        """The tenant's counter; it never falls while the tenant is active."""
        return float(self._served[index])

    def charge(self, index: int, num_tokens: int) -> None:
        """Counts tokens computed for a tenant."""
        self._served[index] += num_tokens * self._cost[index]

    def charge_rows(self, indexes: npt.NDArray[np.int32]) -> None:
        """Counts one token for each row."""
        self._served += np.bincount(indexes, minlength=len(self._cost)) * self._cost

    def _lowest_active(self) -> float:
        active = self._served[self._num_active_uses > 0]
        if len(active):
            self._floor = max(self._floor, float(active.min()))
        return self._floor

    def _remember(self, tenant: str) -> int:
        if not self._unused:
            self._make_room()
        index = self._unused.pop()
        self._index_by_tenant[tenant] = index
        self._tenant_by_index[index] = tenant
        self._served[index] = 0.0
        return index

    def _make_room(self) -> None:
        if len(self._served) >= _MAX_IDLE:
            self._forget_idle()
        if not self._unused:
            size = len(self._served)
            self._served = np.concatenate((self._served, np.zeros(size)))
            self._cost = np.concatenate((self._cost, np.ones(size)))
            self._num_active_uses = np.concatenate(
                (self._num_active_uses, np.zeros(size, np.int64))
            )
            self._unused = list(range(2 * size - 1, size - 1, -1))

    def _forget_idle(self) -> None:
        # Those at or below the floor owe nothing: coming back, they would be lifted to it anyhow.
        floor = self._lowest_active()
        idle = np.flatnonzero((self._num_active_uses == 0) & (self._served <= floor))
        for index in idle.tolist():
            tenant = self._tenant_by_index.pop(index, None)
            if tenant is not None:
                del self._index_by_tenant[tenant]
                self._unused.append(index)
