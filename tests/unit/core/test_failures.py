"""Rows without logits, workers that die, epochs that end."""

import pytest

from scheduler_svc.core.request import EndReason
from scheduler_svc.core.results import FAILED_MESSAGE
from tests.unit.core.replica import VOCAB_SIZE, Replica, expected_output, limits, prompt_of


def test_a_failed_row_ends_its_output_only() -> None:
    """TP-08: others in the batch go on."""
    replica = Replica()
    other = replica.add(prompt_of(9), max_tokens=10)
    bad = replica.add(prompt_of(9, first=2), max_tokens=10)
    replica.step()
    replica.worker.failing_seeds.add(bad.sampling.seed)
    replica.run()
    end = replica.reader(bad).end
    assert end is not None
    assert (end.reason, end.message) == (EndReason.ERROR, FAILED_MESSAGE)
    assert replica.tokens(other) == expected_output(other, VOCAB_SIZE, 10)
    replica.check_idle()


def test_whoever_shares_a_failed_rows_blocks_computes_them_anew() -> None:
    replica = Replica()
    bad = replica.add(prompt_of(20), max_tokens=30)
    replica.step()
    sharer = replica.add(prompt_of(20), max_tokens=10)
    replica.step()
    replica.step()
    replica.worker.failing_seeds.add(bad.sampling.seed)
    num_plans = len(replica.plans)
    replica.run()
    assert replica.reason(bad) is EndReason.ERROR
    assert replica.tokens(sharer) == expected_output(sharer, VOCAB_SIZE, 10)
    again = [plan for plan in replica.plans[num_plans:] if plan.starts]
    assert again[0].chunk_start_positions.tolist() == [0], "nothing of the prefix is trusted"


def test_a_failed_rows_prefix_is_not_found_again() -> None:
    replica = Replica()
    bad = replica.add(prompt_of(20), max_tokens=30)
    replica.step()
    replica.worker.failing_seeds.add(bad.sampling.seed)
    replica.run()
    assert replica.core.counts().num_blocks_cached == 0
    later = replica.add(prompt_of(20), max_tokens=3)
    replica.run()
    assert replica.core.counts().total_cached_tokens == 0
    assert replica.tokens(later) == expected_output(later, VOCAB_SIZE, 3)


def test_one_output_of_several_may_fail() -> None:
    replica = Replica()
    new = replica.add(prompt_of(9), num_outputs=3, max_tokens=12)
    for _ in range(3):
        replica.step()
    replica.worker.failing_seeds.add(new.sampling.seed)
    replica.run()
    assert replica.reason(new, 0) is EndReason.ERROR
    for index in (1, 2):
        assert replica.tokens(new, index) == expected_output(new, VOCAB_SIZE, 12, index)


@pytest.mark.parametrize("after", range(6))
def test_streams_survive_the_loss_of_the_workers(after: int) -> None:
    replica = Replica(limits(max_num_batched_tokens=8))
    requests = [replica.add(prompt_of(11, first=n), max_tokens=9) for n in range(4)]
    forked = replica.add(prompt_of(11, first=9), num_outputs=2)
    for _ in range(after):
        replica.step()
    replica.restart_epoch()
    assert replica.core.num_steps_issued == 0
    replica.run()
    for new in requests:
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 9)
    for index in range(2):
        assert replica.tokens(forked, index) == expected_output(forked, VOCAB_SIZE, 8, index)
    replica.check_idle()


def test_a_new_epoch_finds_nothing_of_the_old_one() -> None:
    replica = Replica()
    replica.add(prompt_of(20))
    replica.run()
    replica.restart_epoch()
    replica.add(prompt_of(20))
    replica.run()
    assert replica.core.counts().total_cached_tokens == 0


def test_without_workers_requests_wait() -> None:
    replica = Replica()
    replica.core.leave_epoch(replica.now, was_fatal=True)
    assert not replica.core.can_plan
    new = replica.add()
    assert replica.core.plan(replica.now) is None
    assert replica.core.has_work
    assert replica.core.counts().num_blocks == 0
    replica.core.start_epoch(replica.limits, replica.now)
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 8)


def kill(replica: Replica) -> None:
    """Workers die with steps in flight."""
    while replica.issue() is not None:
        pass
    replica.restart_epoch(was_fatal=True)


def test_a_suspect_runs_alone_until_it_has_a_new_token() -> None:
    replica = Replica()
    requests = [replica.add(prompt_of(5, first=n), max_tokens=6) for n in range(2)]
    kill(replica)
    kill(replica)
    bystander = replica.add(prompt_of(5, first=7), max_tokens=6)
    replica.plans.clear()
    replica.run()
    alone = [plan for plan in replica.plans if plan.starts][:2]
    assert [len(plan.slots) for plan in alone] == [1, 1]
    for new in (*requests, bystander):
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 6)


def test_suspects_are_cleared_one_after_the_other_before_anybody_goes_on() -> None:
    """Who is cleared does not hold up the next one to its own end."""
    replica = Replica()
    requests = [replica.add(prompt_of(5, first=n), max_tokens=60) for n in range(6)]
    kill(replica)
    kill(replica)
    replica.plans.clear()
    for _ in range(4 * len(requests)):
        replica.step()
    assert all(len(replica.reader(new).tokens) > 1 for new in requests)
    replica.run()
    for new in requests:
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 60)


def test_the_third_death_ends_the_request() -> None:
    replica = Replica()
    killer = replica.add(prompt_of(5), max_tokens=6)
    for _ in range(3):
        kill(replica)
    end = replica.reader(killer).end
    assert end is not None
    assert end.reason is EndReason.ERROR
    assert "died 3 times" in end.message
    replica.check_idle()


def test_only_the_killer_ends() -> None:
    """No request takes the service down, and none ends for what another did."""
    replica = Replica()
    killer = replica.add(prompt_of(5), max_tokens=6)
    others = [replica.add(prompt_of(5, first=n), max_tokens=6) for n in range(1, 4)]
    for _ in range(40):
        replica.now += 0.01
        while replica.issue() is not None:
            pass
        if not replica.results:
            break
        epoch = replica.core._lifecycle.epoch
        assert epoch is not None
        if any(each.request.new is killer for each in epoch.batch.occupied()):
            replica.restart_epoch(was_fatal=True)
        else:
            replica.deliver()
            replica.hear()
    replica.run()
    assert replica.reason(killer) is EndReason.ERROR
    for new in others:
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 6)


def test_deaths_count_only_while_there_is_no_new_token() -> None:
    replica = Replica()
    requests = [replica.add(prompt_of(5, first=n), max_tokens=12) for n in range(2)]
    for _ in range(5):
        for _ in range(2):
            replica.step()
        kill(replica)
    replica.run()
    for new in requests:
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 12)
    assert all(len(plan.starts) in {0, 2} for plan in replica.plans), "nobody ran alone"


def test_deaths_of_the_core_count_too() -> None:
    replica = Replica()
    alone = replica.add(prompt_of(5), was_accepted=True, num_core_deaths=2)
    other = replica.add(prompt_of(5, first=2))
    ended = replica.add(prompt_of(5, first=3), was_accepted=True, num_core_deaths=3)
    assert replica.reason(ended) is EndReason.ERROR
    replica.run()
    assert [len(plan.slots) for plan in replica.plans if plan.starts] == [1, 2]
    for new in (alone, other):
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 8)


def test_smaller_workers_end_what_does_not_fit_any_more() -> None:
    replica = Replica()
    running = replica.add(prompt_of(20), max_tokens=60)
    waiting = replica.new(prompt_of(50, first=2), max_tokens=5)
    for _ in range(12):
        replica.step()
    replica.submit(waiting)
    replica.leave_epoch()
    replica.limits = limits(max_model_len=40)
    replica.worker.limits = replica.limits
    replica.worker.begin_epoch()
    replica.core.start_epoch(replica.limits, replica.now)
    replica.run()
    assert replica.reason(running) is EndReason.LENGTH
    assert replica.tokens(running) == expected_output(running, VOCAB_SIZE, 20)
    assert replica.reason(waiting) is EndReason.ERROR
