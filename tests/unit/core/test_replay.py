"""What is computed again is counted, and only that."""

from tests.unit.core.replica import Replica, limits, prompt_of


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
