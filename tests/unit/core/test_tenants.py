"""Virtual counters: who was served how much, and what idleness earns."""

import numpy as np

from scheduler_svc.core.tenants import TenantShares


def test_rows_are_charged_one_token_each() -> None:
    shares = TenantShares()
    first, second = shares.enter("first"), shares.enter("second")
    shares.charge_rows(np.array([first, second, first], np.int32))
    assert (shares.served(first), shares.served(second)) == (2.0, 1.0)


def test_a_token_costs_one_by_the_weight() -> None:
    shares = TenantShares()
    light, heavy = shares.enter("light"), shares.enter("heavy", weight=4.0)
    shares.charge(heavy, 8)
    shares.charge_rows(np.array([light, heavy, heavy], np.int32))
    assert (shares.served(light), shares.served(heavy)) == (1.0, 2.5)
    shares.enter("heavy", weight=1.0)
    shares.charge(heavy, 1)
    assert shares.served(heavy) == 3.5, "the newest weight holds"


def test_a_new_tenant_starts_at_the_lowest_active_counter() -> None:
    shares = TenantShares()
    busy = shares.enter("busy")
    shares.charge(busy, 1000)
    assert shares.served(shares.enter("new")) == 1000.0


def test_idle_time_earns_no_credit() -> None:
    shares = TenantShares()
    idle, busy = shares.enter("idle"), shares.enter("busy")
    shares.leave(idle)
    shares.charge(busy, 500)
    assert shares.served(shares.enter("idle")) == 500.0


def test_leaving_does_not_clear_what_is_owed() -> None:
    shares = TenantShares()
    greedy, other = shares.enter("greedy"), shares.enter("other")
    shares.charge(greedy, 900)
    shares.charge(other, 100)
    shares.leave(greedy)
    assert shares.served(shares.enter("greedy")) == 900.0


def test_uses_are_counted() -> None:
    shares = TenantShares()
    index = shares.enter("tenant")
    shares.enter("tenant")
    assert shares.num_uses("tenant") == 2
    shares.leave(index)
    assert shares.num_uses("tenant") == 1
    assert shares.num_uses("unknown") == 0


def test_idle_tenants_that_owe_nothing_are_forgotten() -> None:
    """MET-05's sibling: names that clients choose do not fill the memory."""
    shares = TenantShares()
    busy = shares.enter("busy")
    for number in range(30_000):
        shares.leave(shares.enter(f"tenant-{number}"))
        shares.charge(busy, 1)
    assert len(shares._index_by_tenant) < 10_000
    assert shares.served(busy) == 30_000.0
