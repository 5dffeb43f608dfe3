"""What a request would meet, without sending it."""

import pytest

from scheduler_svc.core.estimate import Estimate, Question
from scheduler_svc.core.refusals import DeadlineTooClose
from tests.unit.core.replica import Replica, limits, prompt_of


def ask(replica: Replica, num_tokens: int = 10, *, first: int = 1, **fields: object) -> Estimate:
    prompt = prompt_of(num_tokens, first=first)
    return replica.core.estimate(Question(tenant="tenant", prompt=prompt, **fields))  # type: ignore[arg-type]


def test_says_what_is_cached_and_keeps_nothing() -> None:
    replica = Replica()
    assert ask(replica, 33) == Estimate(
        num_cached_tokens=0, num_requests_ahead=0, num_tokens_ahead=0, first_token_s=None
    )
    replica.add(prompt_of(32))
    replica.run()
    before = replica.core.counts()
    assert ask(replica, 33).num_cached_tokens == 32
    assert ask(replica, 32).num_cached_tokens == 28, "the last token is always computed"
    assert ask(replica, 33, reads_cache=False).num_cached_tokens == 0
    assert replica.core.counts() == before


def test_says_what_is_ahead() -> None:
    replica = Replica(limits(max_num_seqs=1))
    for _ in range(3):
        replica.add(prompt_of(20), max_tokens=50)
    replica.step()
    answer = ask(replica)
    assert (answer.num_requests_ahead, answer.num_tokens_ahead) == (2, 40)
    assert ask(replica, priority=-1).num_requests_ahead == 0


def test_a_cached_prompt_is_expected_sooner() -> None:
    """The fake worker takes 1 ms a step and 10 us a prompt token."""
    replica = Replica()
    replica.add(prompt_of(64))
    replica.run()
    cached, other = ask(replica, 64).first_token_s, ask(replica, 64, first=2).first_token_s
    assert cached is not None
    assert other is not None
    assert cached < other / 4


def test_where_slots_lack_it_is_expected_when_enough_have_ended() -> None:
    replica = Replica(limits(max_num_seqs=2))
    for _ in range(20):
        replica.add(prompt_of(4), max_tokens=20)
    while replica.core.counts().num_waiting > 10:
        replica.step()
    stay_s = replica.core._lifecycle.stays.typical_s
    answer = ask(replica)
    assert answer.first_token_s is not None
    assert answer.first_token_s == pytest.approx(11 * stay_s / 2, rel=0.1)
    with pytest.raises(DeadlineTooClose) as refusal:
        replica.submit(replica.new(deadline=replica.now + 0.9 * answer.first_token_s))
    assert refusal.value.needed_s == pytest.approx(answer.first_token_s)
    replica.submit(replica.new(deadline=replica.now + 2 * answer.first_token_s))


def test_without_workers_nothing_is_cached() -> None:
    replica = Replica()
    replica.add(prompt_of(32))
    replica.run()
    replica.core.leave_epoch(replica.now, was_fatal=False)
    assert ask(replica, 33).num_cached_tokens == 0
