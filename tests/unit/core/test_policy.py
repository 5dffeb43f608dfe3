"""Who gets how much of a step."""

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.request import EndReason, NewRequest, ResumedOutput
from tests.unit.core.replica import (
    VOCAB_SIZE,
    Reader,
    Replica,
    expected_output,
    limits,
    prompt_of,
)


def started(replica: Replica) -> list[int]:
    """Requests by number, in the order in which their prompts began."""
    order: dict[int, None] = {}
    for start in replica.starts:
        order.setdefault(start.number)
    return list(order)


def tokens_of(plan: StepPlan, slot: int) -> int:
    """Prompt tokens that a plan computes for a slot."""
    chunked = plan.slots[plan.chunk_rows].tolist()
    return int(plan.chunk_num_tokens[chunked.index(slot)]) if slot in chunked else 0


def running(replica: Replica, count: int, **fields: object) -> list[NewRequest]:
    """Streams that decode."""
    requests = [replica.add(prompt_of(3, first=50 + n), **fields) for n in range(count)]
    replica.step()
    return requests


def test_streams_go_on_while_a_long_prompt_is_computed() -> None:
    """SCH-01: every stream gets a token in every step, whatever arrives."""
    replica = Replica(limits(max_num_batched_tokens=16))
    streams = running(replica, 4, max_tokens=60)
    long = replica.add(prompt_of(120), max_tokens=2)
    before = [len(replica.tokens(new)) for new in streams]
    for _ in range(8):
        replica.step()
    assert [len(replica.tokens(new)) for new in streams] == [count + 8 for count in before]
    assert not replica.tokens(long)
    assert all(plan.num_decode_rows == 4 for plan in replica.plans[-6:])


def test_chunks_shrink_to_keep_the_streams_time() -> None:
    """The fake worker takes 1 ms a step and 10 us a prompt token; 1.3 ms leave room for 30."""
    replica = Replica(
        limits(max_num_batched_tokens=500, num_blocks=400, max_model_len=1000),
        target_token_time_s=0.0013,
    )
    running(replica, 2, max_tokens=100)
    for _ in range(3):
        replica.step()
    replica.add(prompt_of(900), max_tokens=2)
    for _ in range(8):
        replica.step()
    chunks = [plan.num_prefill_tokens for plan in replica.plans if plan.num_decode_rows]
    assert 30 in chunks
    assert max(chunks) <= 256


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    replica = Replica(limits(max_num_batched_tokens=32))
    long = replica.add(prompt_of(200), max_tokens=2)
    replica.step()
    short = replica.add(prompt_of(12, first=2), max_tokens=2)
    for _ in range(3):
        replica.step()
    assert replica.tokens(short)
    assert not replica.tokens(long)
    assert tokens_of(replica.plans[2], 0) == 20, "the long one gets what the short one leaves"


def test_a_long_prompt_is_sure_of_its_share() -> None:
    replica = Replica(limits(max_num_batched_tokens=32, num_blocks=400, max_num_seqs=100))
    long = replica.add(prompt_of(300), max_tokens=2)
    replica.step()
    for count in range(60):
        replica.add(prompt_of(16, first=10 + count), max_tokens=1)
    while not replica.tokens(long):
        replica.step()
    shares = [tokens_of(plan, 0) for plan in replica.plans[1:12]]
    assert set(shares[1:]) == {16}, "short ones do not starve it"


def test_nobody_is_passed_more_often_than_allowed() -> None:
    """SCH-03: what does not fit is passed by later arrivals, but not for ever."""
    most = 5
    replica = Replica(limits(num_blocks=21, max_num_seqs=4), max_times_passed=most)
    replica.add(prompt_of(30), max_tokens=45)
    replica.step()
    big = replica.add(prompt_of(60, first=2), max_tokens=2)
    for count in range(30):
        replica.add(prompt_of(2, first=100 + count), max_tokens=2)
    replica.run(500)
    order = started(replica)
    assert order.index(big.number) - order.index(1) - 1 == most
    assert replica.tokens(big) == expected_output(big, VOCAB_SIZE, 2)


@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_nobody_waits_behind_more_than_so_many_later_arrivals(random: Random, most: int) -> None:
    """SCH-03: whatever does not fit, for lack of blocks or of budget."""
    replica = Replica(
        limits(num_blocks=14, max_num_seqs=4, max_num_batched_tokens=random.choice([4, 20])),
        max_times_passed=most,
    )
    for n in range(20):
        length = random.choice([1, 2, 8, 20, 40])
        replica.add(prompt_of(length, first=n), max_tokens=random.randint(1, 12))
        for _ in range(random.randint(0, 2)):
            replica.step()
    replica.run()
    order = started(replica)
    for place, number in enumerate(order):
        assert sum(earlier > number for earlier in order[:place]) <= most


def test_putting_a_request_in_anew_does_not_let_more_pass_it() -> None:
    """A request that is put in anew before it has run was passed as often as before."""
    replica = Replica(limits(num_blocks=21, max_num_seqs=4), max_times_passed=2)
    replica.add(prompt_of(30), max_tokens=45)
    replica.step()
    big = replica.add(prompt_of(60, first=2), max_tokens=2)
    for count in range(6):
        replica.add(prompt_of(2, first=100 + count), max_tokens=2)
        replica.step()
        expected = np.array(expected_output(big, VOCAB_SIZE, 2)[:1], np.int32)
        number = 100 + count
        again = replace(big, number=number, resume=(ResumedOutput(tokens=expected),))
        replica.core.submit(again, replica.now)
        replica.readers[again.owner, number, 0] = Reader(expected.tolist())
    order = started(replica)
    assert len(order) == 1 + 2, "two have passed it, and no more"


def test_a_sequence_that_fits_passes_one_that_does_not() -> None:
    replica = Replica(limits(num_blocks=21))
    replica.add(prompt_of(30), max_tokens=30)
    replica.step()
    big = replica.add(prompt_of(60, first=2), max_tokens=2)
    small = replica.add(prompt_of(4, first=3), max_tokens=2)
    replica.step()
    replica.step()
    assert replica.tokens(small)
    assert not replica.tokens(big)


def test_urgent_requests_start_first() -> None:
    replica = Replica(limits(max_num_seqs=1))
    running(replica, 1, max_tokens=5)
    patient = replica.add(priority=1)
    usual = replica.add(priority=0)
    urgent = replica.add(priority=-3)
    replica.run()
    assert started(replica)[1:] == [urgent.number, usual.number, patient.number]


def test_patience_is_rewarded() -> None:
    """Ageing: a flood of urgent requests does not starve a patient one."""
    replica = Replica(limits(max_num_seqs=1), ageing_s=0.5)
    patient = replica.add(priority=8, tenant="tenant")
    for _ in range(100):
        replica.add(priority=0, max_tokens=2)
    for _ in range(150):
        replica.step()
        replica.add(priority=0, max_tokens=2)
    assert replica.tokens(patient) == expected_output(patient, VOCAB_SIZE, 8)


def test_equal_tenants_get_equal_shares() -> None:
    """One floods, one asks now and then: served tokens stay within a bound while both wait."""
    replica = Replica(limits(max_num_seqs=2), max_queue_requests=10_000)
    flood = [replica.add(prompt_of(8, first=n), tenant="flood") for n in range(80)]
    quiet = [replica.add(prompt_of(8, first=500 + n), tenant="quiet") for n in range(20)]
    while not all(replica.tokens(new) for new in quiet):
        replica.step()
        served = [sum(len(replica.tokens(new)) for new in requests) for requests in (flood, quiet)]
        assert abs(served[0] - served[1]) <= 2 * (8 + 8)
    assert len([new for new in flood if replica.tokens(new)]) <= 22


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0), (1.0, 5.0), (0.25, 1.0)])
def test_flooding_tenants_are_served_by_weight(weights: tuple[float, float], seed: int) -> None:
    """SCH-03: while both wait, tokens by weight differ by what can run at once, and no more."""
    random = Random(seed)
    num_seqs, longest = random.randint(1, 4), 24
    replica = Replica(
        limits(max_num_seqs=num_seqs, max_num_batched_tokens=random.choice([6, 32])),
        use_prefix_cache=False,
        max_queue_requests=10_000,
    )
    bound = num_seqs * longest / min(weights)
    owner_of: dict[int, int] = {}  # tenant by number, which is the seed as well
    for count in range(2 * 60):
        tenant = count % 2
        new = replica.add(
            prompt_of(random.randint(1, longest // 2)),
            tenant="ab"[tenant],
            tenant_weight=weights[tenant],
            max_tokens=random.randint(1, longest // 2),
        )
        owner_of[new.number] = tenant
    served = [0.0, 0.0]
    while True:
        replica.step()
        num_begun = Counter(owner_of[start.number] for start in replica.starts)
        if max(num_begun.values()) == 60:
            break  # one of them waits no more
        served = [0.0, 0.0]
        for number, num_tokens in replica.worker.num_computed.items():
            served[owner_of[number]] += num_tokens / weights[owner_of[number]]
        assert abs(served[0] - served[1]) <= bound
    assert min(served) > bound, "the bound was put to a test"


def test_requests_without_a_chance_are_dropped_from_the_queue() -> None:
    replica = Replica(limits(max_num_seqs=1))
    running(replica, 1, max_tokens=100)
    late = replica.add(deadline=replica.now + 0.05)
    for _ in range(8):
        replica.step()
    assert replica.reason(late) is EndReason.DEADLINE
    assert not replica.tokens(late)


def test_slots_are_counted_once() -> None:
    """SCH-04: cancelled and preempted sequences never use slots up."""
    replica = Replica(limits(max_num_seqs=3, num_blocks=10))
    for round_number in range(30):
        requests = [
            replica.add(prompt_of(6, first=10 * round_number + n), max_tokens=12) for n in range(4)
        ]
        for _ in range(3):
            replica.step()
        new = requests[round_number % 4]
        replica.core.cancel(tenant=new.tenant, request_id=new.request_id, now=replica.now)
        replica.hear()
    replica.run()
    replica.check_idle()


def test_a_huge_queue_ends() -> None:
    """SCH-07."""
    replica = Replica(limits(max_num_seqs=8), max_queue_requests=2000)
    requests = [replica.add(prompt_of(2, first=n), max_tokens=1) for n in range(2000)]
    replica.run()
    assert all(len(replica.tokens(new)) == 1 for new in requests)
