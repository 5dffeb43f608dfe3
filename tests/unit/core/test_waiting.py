"""The queue's order, against a naive one."""

from contextlib import closing
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core import checks
from scheduler_svc.core.limits import Policy
from scheduler_svc.core.request import NewRequest
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.tenants import TenantShares
from scheduler_svc.core.waiting import WaitingQueue


class Waiting:
    """A queue with sequences to put in."""

    def __init__(self, *, ageing_s: float = 30.0) -> None:
        self.shares = TenantShares()
        self.queue = WaitingQueue(self.shares, ageing_s=ageing_s)
        self.num_made = 0

    def push(
        self,
        name: str,
        *,
        tenant: str = "tenant",
        priority: int = 0,
        submitted_at: float = 0.0,
        now: float = 0.0,
    ) -> Sequence:
        self.num_made += 1
        new = NewRequest(
            tenant=tenant,
            request_id=name,
            owner=1,
            number=self.num_made,
            blob=b"",
            body_digest=b"",
            prompt=np.arange(4, dtype=np.int32),
            priority=priority,
            submitted_at=submitted_at,
        )
        request = checks.make_request(
            new,
            order=self.num_made,
            tenant_index=self.shares.enter(tenant),
            max_tokens=4,
            policy=Policy(),
            now=now,
        )
        self.queue.push(request.sequences[0], now)
        return request.sequences[0]

    def order(self) -> list[str]:
        with closing(self.queue.walk()) as walk:
            return [sequence.request.new.request_id for sequence in walk]


def test_arrival_decides_within_a_tenant_and_age_counts() -> None:
    waiting = Waiting()
    waiting.push("second", submitted_at=5.0)
    waiting.push("third", submitted_at=6.0)
    waiting.push("first", submitted_at=1.0)
    assert waiting.order() == ["first", "second", "third"]


def test_walking_takes_nothing_out() -> None:
    waiting = Waiting()
    waiting.push("only")
    assert waiting.order() == waiting.order() == ["only"]
    assert len(waiting.queue) == 1


def test_a_more_urgent_class_comes_first() -> None:
    waiting = Waiting()
    waiting.push("patient", priority=1)
    waiting.push("urgent", priority=-1, submitted_at=9.0)
    assert waiting.order() == ["urgent", "patient"]


def test_the_least_served_tenant_comes_first() -> None:
    waiting = Waiting()
    served = waiting.push("served", tenant="served")
    waiting.push("fresh", tenant="fresh", submitted_at=9.0)
    waiting.shares.charge(served.request.tenant_index, 100)
    assert waiting.order() == ["fresh", "served"]


def test_charging_during_a_walk_changes_who_comes_next() -> None:
    waiting = Waiting()
    first = waiting.push("a1", tenant="a")
    for name in ("a2", "b1", "b2"):
        waiting.push(name, tenant=name[0], submitted_at=1.0)
    order = []
    with closing(waiting.queue.walk()) as walk:
        for sequence in walk:
            order.append(sequence.request.new.request_id)
            waiting.queue.remove(sequence)
            waiting.shares.charge(sequence.request.tenant_index, 10)
    assert order == ["a1", "b1", "a2", "b2"]
    assert first.ticket == 0
    assert len(waiting.queue) == 0


def test_waiting_long_lets_a_sequence_rise_to_the_class_above() -> None:
    waiting = Waiting(ageing_s=10.0)
    waiting.push("patient", priority=2, submitted_at=0.0, now=0.0)
    waiting.push("urgent", priority=0, submitted_at=5.0, now=5.0)
    waiting.queue.rise(9.0)
    assert waiting.order() == ["urgent", "patient"]
    waiting.queue.rise(10.0)
    assert waiting.order() == ["patient", "urgent"], "now it is one class, and it came first"


def test_a_backlog_of_old_patient_work_does_not_drown_urgent_work() -> None:
    """One rises for eight that leave, so that both classes go on."""
    waiting = Waiting(ageing_s=10.0)
    for number in range(100):
        waiting.push(f"patient-{number}", priority=2)
    order = []
    for number in range(90):
        now = 100.0 + number
        waiting.push(f"urgent-{number}", submitted_at=now, now=now)
        waiting.queue.rise(now)
        with closing(waiting.queue.walk()) as walk:
            sequence = next(walk)
        order.append(sequence.request.new.request_id)
        waiting.queue.remove(sequence)
    num_patient = sum(name.startswith("patient") for name in order)
    assert num_patient in range(10, 14), "a first one, then one for each eight"
    assert [name for name in order if name.startswith("patient")][:2] == ["patient-0", "patient-1"]


def test_rises_that_were_not_used_are_not_saved_up_without_end() -> None:
    waiting = Waiting(ageing_s=10.0)
    for number in range(1000):
        waiting.queue.remove(waiting.push(str(number)))
    for number in range(20):
        waiting.push(f"patient-{number}", priority=2)
    waiting.push("urgent", submitted_at=50.0, now=50.0)
    waiting.queue.rise(100.0)
    assert waiting.order().index("urgent") == 8


def test_age_does_not_lift_above_the_classes_that_wait() -> None:
    waiting = Waiting(ageing_s=10.0)
    waiting.push("flood", tenant="flood", now=0.0)
    waiting.queue.rise(100.0)
    fresh = waiting.push("fresh", tenant="fresh", submitted_at=100.0, now=100.0)
    waiting.shares.charge(waiting.shares.enter("flood"), 5)
    assert waiting.order() == ["fresh", "flood"]
    assert fresh.ticket


def test_a_request_that_has_not_run_keeps_its_age_and_class_when_put_in_anew() -> None:
    """Else one that arrived later would rise before it."""
    waiting = Waiting(ageing_s=10.0)
    first = waiting.push("first", priority=2, submitted_at=0.0, now=0.0)
    waiting.push("second", priority=2, submitted_at=1.0, now=1.0)
    waiting.push("urgent", priority=0, submitted_at=5.0, now=5.0)
    waiting.queue.remove(first)
    waiting.queue.push(first, 9.0)
    waiting.queue.rise(10.5)
    assert waiting.order() == ["first", "urgent", "second"]
    waiting.queue.remove(first)
    waiting.queue.push(first, 10.6)
    assert waiting.order() == ["first", "urgent", "second"]


def test_removed_sequences_are_swept() -> None:
    waiting = Waiting()
    sequences = [waiting.push(str(number)) for number in range(1000)]
    for sequence in sequences[1:]:
        waiting.queue.remove(sequence)
    level = waiting.queue._levels[0]
    assert level.num_entries < 200
    assert len(level.entered) < 200
    assert waiting.order() == ["0"]


@given(st.randoms(use_true_random=False))
def test_order_is_that_of_a_naive_queue(random: Random) -> None:
    """SCH-03: priority, least-served tenant, arrival; whatever was removed or looked at before."""
    waiting = Waiting()
    present: list[Sequence] = []
    for number in range(40):
        happening = random.randrange(4)
        if happening < 2 or not present:
            present.append(
                waiting.push(
                    str(number),
                    tenant=random.choice("abc"),
                    priority=random.choice([-1, 0, 0]),
                    submitted_at=random.choice([0.0, float(number)]),
                )
            )
        elif happening == 2:
            waiting.queue.remove(present.pop(random.randrange(len(present))))
        else:
            index = random.choice(present).request.tenant_index
            waiting.shares.charge(index, random.randint(1, 50))
    naive = sorted(
        present,
        key=lambda each: (
            each.request.new.priority,
            waiting.shares.served(each.request.tenant_index),
            each.request.tenant_index,
            each.request.new.submitted_at,
            each.request.order,
        ),
    )
    assert waiting.order() == [each.request.new.request_id for each in naive]
