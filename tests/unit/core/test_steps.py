"""What plans look like, and that their results are taken in as the contract says."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_svc.core.plan import BadResult
from scheduler_svc.core.request import EndReason, SamplingParams
from tests.unit.core.paged_worker import next_token
from tests.unit.core.replica import VOCAB_SIZE, Replica, expected_output, limits, prompt_of


def test_a_request_generates_what_the_model_says() -> None:
    replica = Replica()
    new = replica.add(max_tokens=20)
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 20)
    assert replica.reason(new) is EndReason.LENGTH
    replica.check_idle()


def test_a_start_brings_its_prompt_blocks_and_settings() -> None:
    replica = Replica()
    new = replica.add(
        prompt_of(10), eos_token_ids=(3, 4), stop_token_ids=(4, 5), min_tokens=2, max_tokens=4
    )
    plan = replica.issue()
    assert plan is not None
    (start,) = plan.starts
    assert (start.slot, start.generation, start.num_prompt_tokens) == (0, 1, 10)
    assert start.stop_token_ids == (3, 4, 5)
    assert start.min_position == 12
    assert start.sampling == new.sampling
    assert plan.chunk_tokens.tolist() == new.prompt.tolist()
    assert plan.new_block_indexes.tolist() == [0, 1, 2]
    assert plan.new_block_ids.tolist() == [1, 2, 3]


def test_a_steady_plan_names_nothing_but_slots() -> None:
    replica = Replica()
    for _ in range(3):
        replica.add(prompt_of(9), max_tokens=50)
    replica.step()
    plan = replica.issue()
    assert plan is not None
    assert plan.slots.tolist() == [0, 1, 2]
    assert plan.num_decode_rows == 3
    assert not plan.starts
    for column in (plan.chunk_rows, plan.chunk_tokens, plan.new_block_slots):
        assert column.size == 0


def test_steps_run_at_most_so_far_ahead() -> None:
    for most in (1, 2):
        replica = Replica(max_steps_in_flight=most)
        replica.add(max_tokens=50)
        while replica.issue() is not None:
            pass
        assert replica.core.num_steps_issued == most
        assert not replica.core.can_plan
        replica.deliver()
        assert replica.core.can_plan


def test_the_last_token_is_known_at_planning_time() -> None:
    """No row is planned past max_tokens, although its tokens are not known yet."""
    replica = Replica()
    new = replica.add(prompt_of(4), max_tokens=3)
    replica.run()
    assert len(replica.tokens(new)) == 3
    assert replica.core.num_steps_issued == 3


def test_an_end_id_ends_the_stream_and_later_tokens_are_dropped() -> None:
    replica = Replica()
    quiet = replica.new(prompt_of(6), max_tokens=30)
    expected = expected_output(quiet, VOCAB_SIZE, 30)
    new = replace(quiet, eos_token_ids=(expected[4],))
    replica.submit(new)
    replica.run()
    assert replica.tokens(new) == expected[:5]
    end = replica.reader(new).end
    assert end is not None
    assert (end.reason, end.stop_token_id) == (EndReason.EOS, expected[4])
    replica.check_idle()


def test_a_stop_id_is_told_from_an_end_id() -> None:
    replica = Replica()
    quiet = replica.new(prompt_of(6), max_tokens=30)
    expected = expected_output(quiet, VOCAB_SIZE, 30)
    new = replace(quiet, stop_token_ids=(expected[2],))
    replica.submit(new)
    replica.run()
    assert replica.reason(new) is EndReason.STOP_TOKEN
    assert replica.tokens(new) == expected[:3]


def test_no_end_id_counts_before_min_tokens() -> None:
    """EOS-04: only generated tokens count, the prompt does not."""
    worker_limits = limits(vocab_size=3)
    replica = Replica(worker_limits)
    prompt = prompt_of(20) % 3
    new = replica.add(prompt, max_tokens=30, min_tokens=10, eos_token_ids=(1,))
    replica.run()
    assert replica.tokens(new) == expected_output(new, 3, 30)
    assert len(replica.tokens(new)) > 10
    assert 1 not in replica.tokens(new)[:10]


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_prompt_ending_on_a_block_border_gets_a_new_block(block_size: int) -> None:
    """CP-02: chunks that divide the blocks, and chunks that do not; then two blocks of decode."""
    for chunk in (0, 1, 3, 4, 5, 7):
        replica = Replica(limits(block_size=block_size), max_prefill_chunk_tokens=chunk)
        new = replica.add(prompt_of(4 * block_size), max_tokens=2 * block_size + 1)
        replica.run()
        expected = expected_output(new, VOCAB_SIZE, 2 * block_size + 1)
        assert replica.tokens(new) == expected, f"chunks of {chunk}"


def test_any_pair_of_limits_works() -> None:
    """CP-04: chunk, budget, batch and length in every relation to each other."""
    for chunk in (0, 1, 5, 100):
        for budget in (1, 4, 64):
            for max_num_seqs in (1, 8):
                worker_limits = limits(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
                replica = Replica(worker_limits, max_prefill_chunk_tokens=chunk)
                requests = [replica.add(prompt_of(9, first=n), max_tokens=5) for n in range(3)]
                replica.run()
                for new in requests:
                    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 5)


def test_more_streams_than_budget_take_turns() -> None:
    replica = Replica(limits(max_num_batched_tokens=2, max_num_seqs=6))
    requests = [replica.add(prompt_of(2, first=n), max_tokens=10) for n in range(6)]
    replica.run()
    for new in requests:
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 10)


def test_a_prompt_longer_than_the_budget_is_chunked() -> None:
    """LEN-02."""
    replica = Replica(limits(max_num_batched_tokens=16))
    new = replica.add(prompt_of(100), max_tokens=4)
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 4)
    assert all(plan.num_prefill_tokens <= 16 for plan in replica.plans)


def test_generates_up_to_the_exact_limit() -> None:
    """CG-02: the block size does not divide the limit."""
    replica = Replica(limits(max_model_len=51))
    new = replica.add(prompt_of(10), max_tokens=None)
    replica.run()
    assert len(replica.tokens(new)) == 41
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 41)


def test_a_seed_of_its_own_for_each_output() -> None:
    replica = Replica()
    new = replica.add(num_outputs=3, sampling=SamplingParams(temperature=0.5, seed=7))
    replica.run()
    starts = [start for plan in replica.plans for start in plan.starts]
    assert starts[0].sampling.seed == 7
    assert len({start.sampling.seed for start in starts}) == 3
    assert all(start.sampling.temperature == 0.5 for start in starts)
    outputs = [replica.tokens(new, index) for index in range(3)]
    assert outputs == [expected_output(new, VOCAB_SIZE, 8, index) for index in range(3)]


def test_a_slot_that_is_used_again_has_a_higher_generation() -> None:
    replica = Replica(limits(max_num_seqs=1))
    for _ in range(3):
        replica.add(max_tokens=2)
    replica.run()
    starts = [start for plan in replica.plans for start in plan.starts]
    assert [(start.slot, start.generation) for start in starts] == [(0, 1), (0, 2), (0, 3)]


def test_results_that_answer_no_step_are_refused_and_change_nothing() -> None:
    replica = Replica()
    new = replica.add(prompt_of(6), max_tokens=5)
    replica.issue()
    right = replica.results[0]
    none = np.empty(0, np.int32)
    for wrong in (
        replace(right, step=2),
        replace(right, tokens=none),
        replace(right, tokens=np.array([VOCAB_SIZE], np.int32)),
        replace(right, tokens=np.array([-1], np.int32)),
        replace(right, token_counts=np.array([2], np.int32)),
        replace(right, failed_rows=np.array([5], np.int32)),
        replace(right, failed_rows=np.array([0], np.int32)),
    ):
        with pytest.raises(BadResult):
            replica.core.apply(wrong, replica.now)
    replica.deliver()
    with pytest.raises(BadResult, match="no step is in flight"):
        replica.core.apply(right, replica.now)
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 5)


def test_an_empty_step_is_no_step() -> None:
    """PR-03: nothing to do is legal, also right after everybody has left."""
    replica = Replica()
    assert replica.core.plan(replica.now) is None
    requests = [replica.add(max_tokens=50) for _ in range(4)]
    replica.step()
    for new in requests:
        replica.core.cancel(tenant=new.tenant, request_id=new.request_id, now=replica.now)
    replica.hear()
    assert replica.issue() is None
    replica.run()
    replica.check_idle()
    again = replica.add()
    replica.run()
    assert replica.tokens(again) == expected_output(again, VOCAB_SIZE, 8)


def test_the_fake_worker_draws_by_history_and_seed() -> None:
    drawn = {
        next_token(history, seed=seed, vocab_size=VOCAB_SIZE)
        for history in ([1], [2], [1, 2])
        for seed in (0, 1)
    }
    assert len(drawn) == 6
