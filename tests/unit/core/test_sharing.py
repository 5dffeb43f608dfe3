"""Prompts and outputs that share blocks: same tokens, less work."""

import pytest

from scheduler_svc.core.request import EndReason
from tests.unit.core.replica import VOCAB_SIZE, Replica, expected_output, limits, prompt_of

SIZE = 4


def cached_tokens(replica: Replica, start: int = 0) -> int:
    return replica.core.counts().total_cached_tokens - start


@pytest.mark.parametrize("length", [SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE])
@pytest.mark.parametrize("max_tokens", [1, 32])
def test_the_last_prompt_token_is_always_computed(length: int, max_tokens: int) -> None:
    """PC-01: the same prompt twice, its length on and around block borders."""
    replica = Replica()
    first = replica.add(prompt_of(length), max_tokens=max_tokens)
    replica.run()
    before = cached_tokens(replica)
    second = replica.add(prompt_of(length), max_tokens=max_tokens, sampling=first.sampling)
    replica.run()
    assert replica.tokens(first) == replica.tokens(second)
    assert cached_tokens(replica, before) == (length - 1) // SIZE * SIZE
    replica.check_idle()


def test_generated_blocks_are_found_too() -> None:
    replica = Replica()
    first = replica.add(prompt_of(8), max_tokens=12)
    replica.run()
    conversation = first.prompt.tolist() + replica.tokens(first) + [7, 8, 9]
    second = replica.add(conversation, max_tokens=4)
    replica.run()
    # The last token generated was never computed, so its block is not full.
    assert cached_tokens(replica) == 16
    assert replica.tokens(second) == expected_output(second, VOCAB_SIZE, 4)


def test_identical_prompts_share_from_the_next_plan_on() -> None:
    replica = Replica()
    replica.add(prompt_of(20), max_tokens=30)
    replica.issue()
    second = replica.add(prompt_of(20), max_tokens=4)
    replica.issue()
    assert cached_tokens(replica) == 16
    assert replica.plans[-1].num_prefill_tokens == 4
    replica.run()
    assert replica.tokens(second) == expected_output(second, VOCAB_SIZE, 4)


def test_tenants_do_not_see_each_others_prefixes() -> None:
    replica = Replica()
    replica.add(prompt_of(20), tenant="a")
    replica.run()
    replica.add(prompt_of(20), tenant="b")
    replica.run()
    assert cached_tokens(replica) == 0


def test_a_request_may_neither_read_nor_store() -> None:
    """PC-11: progress does not depend on publication, over several chunks."""
    replica = Replica(limits(max_num_batched_tokens=8))
    private = replica.add(prompt_of(40), stores_cache=False)
    replica.run()
    assert replica.core.counts().num_blocks_cached == 0
    assert replica.tokens(private) == expected_output(private, VOCAB_SIZE, 8)
    replica.add(prompt_of(40))
    replica.run()
    assert cached_tokens(replica) == 0
    fresh = replica.add(prompt_of(40), reads_cache=False)
    replica.run()
    assert cached_tokens(replica) == 0
    assert replica.tokens(fresh) == expected_output(fresh, VOCAB_SIZE, 8)


@pytest.mark.parametrize("chunk", [0, 5])
@pytest.mark.parametrize("use_prefix_cache", [True, False])
def test_chunks_and_cache_combine(*, use_prefix_cache: bool, chunk: int) -> None:
    """CP-05: all four, with a prompt longer than the budget."""
    replica = Replica(
        limits(max_num_batched_tokens=12),
        use_prefix_cache=use_prefix_cache,
        max_prefill_chunk_tokens=chunk,
    )
    requests = [replica.add(prompt_of(50), max_tokens=6) for _ in range(3)]
    replica.run()
    for new in requests:
        assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 6)
    assert (replica.core.counts().num_blocks_cached > 0) is use_prefix_cache


def test_hits_are_counted_once_however_often_a_request_is_preempted() -> None:
    """MET-01."""
    replica = Replica(limits(num_blocks=12))
    requests = [replica.add(prompt_of(12, first=n), max_tokens=20) for n in range(4)]
    replica.run()
    counts = replica.core.counts()
    assert counts.total_preemptions > 0
    assert counts.total_prompt_tokens == 12 * len(requests)
    assert counts.total_cached_tokens == 0


def test_outputs_of_one_request_share_their_prompt() -> None:
    """N-01: one computes the prompt, the others only its last tokens."""
    replica = Replica()
    new = replica.add(prompt_of(21), num_outputs=4, max_tokens=6)
    replica.run()
    for index in range(4):
        assert replica.tokens(new, index) == expected_output(new, VOCAB_SIZE, 6, index)
    chunks = [plan.chunk_num_tokens.tolist() for plan in replica.plans if len(plan.chunk_rows)]
    assert chunks == [[21], [1, 1, 1]]
    replica.check_idle()


def test_outputs_run_also_where_nothing_can_be_shared() -> None:
    for fields in ({"reads_cache": False}, {"stores_cache": False}):
        replica = Replica()
        new = replica.add(prompt_of(9), num_outputs=3, **fields)
        replica.run()
        for index in range(3):
            assert replica.tokens(new, index) == expected_output(new, VOCAB_SIZE, 8, index)


def test_a_cancelled_first_output_passes_the_prompt_on() -> None:
    replica = Replica(limits(max_num_batched_tokens=4))
    new = replica.add(prompt_of(21), num_outputs=3, max_tokens=6)
    replica.step()
    replica.core.finish_output(
        owner=new.owner,
        number=new.number,
        output_index=0,
        num_tokens=0,
        reason=EndReason.STOP_STRING,
        stop_string="",
        now=replica.now,
    )
    replica.run()
    for index in (1, 2):
        assert replica.tokens(new, index) == expected_output(new, VOCAB_SIZE, 6, index)
    replica.check_idle()


def test_after_a_loss_the_prompt_is_computed_once_again() -> None:
    replica = Replica()
    new = replica.add(prompt_of(33), num_outputs=4, max_tokens=9)
    for _ in range(4):
        replica.step()
    replica.restart_epoch()
    num_plans = len(replica.plans)
    replica.run()
    again = sum(plan.num_prefill_tokens for plan in replica.plans[num_plans:])
    assert again < 2 * 33
    for index in range(4):
        assert replica.tokens(new, index) == expected_output(new, VOCAB_SIZE, 9, index)


def test_a_sequence_that_did_not_fit_does_once_its_prefix_is_published() -> None:
    replica = Replica(limits(num_blocks=20, max_num_batched_tokens=16))
    first = replica.add(prompt_of(48), max_tokens=20)
    second = replica.add([*prompt_of(48).tolist(), 1, 2, 3], max_tokens=20)
    while not replica.tokens(second):
        assert replica.reader(first).end is None, "it waited for the first one's end"
        replica.step()
    replica.run()
    assert replica.tokens(second) == expected_output(second, VOCAB_SIZE, 20)


def test_many_outputs_end() -> None:
    """SCH-06: more outputs than slots."""
    replica = Replica(max_outputs=40)
    new = replica.add(prompt_of(9), num_outputs=40, max_tokens=3)
    replica.run()
    outputs = [replica.tokens(new, index) for index in range(40)]
    assert outputs == [expected_output(new, VOCAB_SIZE, 3, index) for index in range(40)]
    replica.check_idle()


def test_a_flushed_cache_finds_nothing_and_running_streams_go_on() -> None:
    replica = Replica()
    running = replica.add(prompt_of(20), max_tokens=20)
    replica.step()
    replica.core.flush_prefix_cache()
    replica.check()
    other = replica.add(prompt_of(20), max_tokens=4)
    replica.run()
    assert cached_tokens(replica) == 0
    assert replica.tokens(running) == expected_output(running, VOCAB_SIZE, 20)
    assert replica.tokens(other) == expected_output(other, VOCAB_SIZE, 4)
