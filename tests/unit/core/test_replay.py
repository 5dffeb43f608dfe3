"""What is computed again is counted, and only that."""

import dataclasses

import numpy as np

from scheduler_svc.core.request import ResumedOutput, SamplingParams
from tests.unit.core.replica import VOCAB_SIZE, Replica, expected_output, limits, prompt_of


def test_nothing_is_replayed_while_there_is_room() -> None:
    """Outputs that share a prompt, and prompts found in the cache, included."""
    replica = Replica(limits(num_blocks=200, max_num_seqs=8))
    for _ in range(2):
        replica.add(prompt_of(30), max_tokens=12, num_outputs=3)
        replica.run()
    assert replica.core.counts().total_replayed_tokens == 0


def test_a_preempted_sequence_replays_what_the_cache_has_lost() -> None:
    replica = Replica(limits(num_blocks=10, max_num_seqs=3), use_prefix_cache=False)
    for n in range(3):
        replica.add(prompt_of(8, first=n), max_tokens=9)
    replica.run()
    counts = replica.core.counts()
    assert counts.total_preemptions > 0
    # each time at least the prompt, at most all but the last token
    assert 8 * counts.total_preemptions <= counts.total_replayed_tokens
    assert counts.total_replayed_tokens <= 16 * counts.total_preemptions


def test_an_epochs_end_replays_every_running_sequence_as_far_as_it_was() -> None:
    replica = Replica(limits(num_blocks=200, max_num_seqs=8))
    new = replica.add(prompt_of(30), max_tokens=12)
    for _ in range(5):
        replica.step()
    num_known = 30 + len(replica.tokens(new))
    replica.restart_epoch()
    replica.run()
    assert replica.core.counts().total_replayed_tokens == num_known


def test_a_resumed_request_replays_and_is_no_new_prompt() -> None:
    """Scenario MET-01: its prompt was counted where its tokens were made."""
    replica = Replica(limits(num_blocks=200, max_num_seqs=8))
    replica.add(prompt_of(30), max_tokens=12)
    replica.run()
    before = replica.core.counts()
    new = replica.new(prompt_of(30, first=100), max_tokens=12, sampling=SamplingParams(seed=5))
    made = expected_output(new, VOCAB_SIZE, 12)[:4]
    resumed = ResumedOutput(tokens=np.array(made, np.int32))
    replica.submit(dataclasses.replace(new, resume=(resumed,)))
    replica.run()
    counts = replica.core.counts()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 12)
    assert counts.total_prompt_tokens == before.total_prompt_tokens == 30
    assert counts.total_replayed_tokens == 34
