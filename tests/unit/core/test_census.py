"""Who is before a new request, by class and fair turns."""

import pytest

from scheduler_svc.core.census import Ahead
from scheduler_svc.core.refusals import QueueFull
from tests.unit.core.replica import Replica, limits, prompt_of


def ahead(replica: Replica, tenant: str, priority: int = 0) -> Ahead:
    return replica.core._lifecycle.room.census.ahead_of(tenant, priority)


def test_a_tenants_own_requests_are_before_it() -> None:
    replica = Replica()
    for length in (5, 7):
        replica.add(prompt_of(length), tenant="a")
    assert ahead(replica, "a") == Ahead(2, 12)


def test_of_another_tenant_as_many_are_before_it_as_take_turns_with_its_own() -> None:
    replica = Replica()
    for _ in range(10):
        replica.add(prompt_of(6), tenant="flood")
    replica.add(prompt_of(4), tenant="steady")
    assert ahead(replica, "steady") == Ahead(3, 16)
    assert ahead(replica, "new") == Ahead(2, 10)


def test_a_tenant_of_more_weight_has_more_turns() -> None:
    replica = Replica()
    for _ in range(10):
        replica.add(prompt_of(6), tenant="heavy", tenant_weight=3.0)
    census = replica.core._lifecycle.room.census
    assert census.ahead_of("new", 0) == Ahead(3, 18)
    assert census.ahead_of("new", 0, weight=3.0) == Ahead(1, 6)


def test_a_full_queue_has_room_by_weight() -> None:
    replica = Replica(max_queue_requests=12)
    for _ in range(8):
        replica.add(tenant="light")
    heavy = {"tenant": "heavy", "tenant_weight": 3.0}
    for _ in range(9):
        replica.add(**heavy)
    with pytest.raises(QueueFull):
        replica.submit(replica.new(**heavy))
    with pytest.raises(QueueFull):
        replica.submit(replica.new(tenant="light"))


def test_more_urgent_classes_are_before_it_as_a_whole_and_patient_ones_not_at_all() -> None:
    replica = Replica()
    for _ in range(5):
        replica.add(prompt_of(6), priority=-1, tenant="urgent")
    replica.add(prompt_of(6), priority=3, tenant="patient")
    assert ahead(replica, "a") == Ahead(5, 30)
    assert ahead(replica, "a", priority=-2) == Ahead(0, 0)


def test_what_runs_or_has_ended_is_not_before_anybody() -> None:
    replica = Replica(limits(max_num_seqs=1))
    replica.add(prompt_of(6))
    waits = replica.add(prompt_of(6))
    replica.step()
    assert ahead(replica, "tenant") == Ahead(1, 6)
    replica.core.cancel(tenant="tenant", request_id=waits.request_id, now=replica.now)
    replica.hear()
    assert ahead(replica, "tenant") == Ahead(0, 0)
    replica.run()
    assert not replica.core._lifecycle.room.census._requests_of, "nothing is left over"
