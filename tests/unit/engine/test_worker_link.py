"""Epochs as a state machine: who is welcomed, what ends an epoch, who is killed."""

import numpy as np
import pytest

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.engine.worker_events import EpochBegun, EpochEnded, StepDone
from scheduler_svc.engine.worker_link import EpochSettings, WorkerLink
from tests.unit.engine.recording_sender import RecordingSender

GROUP = 11
OTHER_GROUP = 12


def make_hello(rank: int = 0, world_size: int = 1, **fields: object) -> step.Hello:
    hello = step.Hello(
        protocol_version=1,
        group_incarnation=GROUP,
        rank=rank,
        world_size=world_size,
        model_digest=b"model",
        block_size=16,
        num_blocks=100,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=512,
        vocab_size=1000,
        pid=100 + rank,
    )
    hello.MergeFrom(step.Hello(**fields))  # type: ignore[arg-type]  # fields by name
    return hello


class Ranks:
    """Says what ranks say, and keeps what they are told."""

    def __init__(self, *, num_tokenizer_ids: int | None = None) -> None:
        self.sender = RecordingSender()
        self.link = WorkerLink(
            self.sender,
            EpochSettings(
                core_incarnation=7,
                max_steps_in_flight=2,
                num_tokenizer_ids=num_tokenizer_ids,
                handshake_limit_s=10.0,
            ),
        )

    def say(self, identity: bytes, message: step.RankMessage, now: float = 0.0) -> None:
        self.link.receive(identity, message.SerializeToString(), now)

    def hello(self, identity: bytes, hello: step.Hello, now: float = 0.0) -> None:
        self.say(identity, step.RankMessage(hello=hello), now)

    def told(self) -> list[tuple[bytes, step.CoreToRank]]:
        return [(who, step.CoreToRank.FromString(payload)) for who, payload in self.sender.take()]

    def kinds(self) -> list[tuple[bytes, str | None]]:
        return [(who, message.WhichOneof("kind")) for who, message in self.told()]

    def begin(self, world_size: int = 1, **fields: object) -> step.Epoch:
        """Brings ranks `0`, `1`, ... into an epoch; returns it."""
        for rank in range(world_size):
            self.hello(b"%d" % rank, make_hello(rank, world_size, **fields))
        epoch = self.told()[-1][1].welcome.epoch
        for rank in range(world_size):
            self.say(b"%d" % rank, step.RankMessage(ready=step.Ready(epoch=epoch)))
        (begun,) = self.link.take_events()
        assert isinstance(begun, EpochBegun)
        return epoch

    def result(self, epoch: step.Epoch, number: int, identity: bytes = b"0") -> None:
        result = step.StepResult(epoch=epoch, step=number, tokens=np.int32(5).tobytes())
        self.say(identity, step.RankMessage(result=result))


def test_epoch_begins_when_all_ranks_are_there_and_ready() -> None:
    ranks = Ranks(num_tokenizer_ids=900)
    ranks.hello(b"b", make_hello(1, 2, num_blocks=50, max_num_seqs=4))
    assert ranks.told() == []
    ranks.hello(b"a", make_hello(0, 2))
    told = ranks.told()
    assert [who for who, _ in told] == [b"a", b"b"]
    welcome = told[0][1].welcome
    assert told[1][1].welcome == welcome
    assert (welcome.epoch.core_incarnation, welcome.epoch.counter) == (7, 1)
    assert (welcome.num_blocks, welcome.num_tokenizer_ids) == (50, 900)
    assert welcome.max_steps_in_flight == 2
    ready = step.RankMessage(ready=step.Ready(epoch=welcome.epoch))
    ranks.say(b"a", ready)
    assert ranks.link.take_events() == []
    assert ranks.link.epoch is None
    ranks.say(b"b", ready)
    (begun,) = ranks.link.take_events()
    assert isinstance(begun, EpochBegun)
    assert (begun.limits.num_blocks, begun.limits.max_num_seqs) == (50, 4)
    assert begun.world_size == 2
    assert ranks.link.epoch == welcome.epoch


def test_results_are_taken_in_order_from_rank_0_of_this_epoch_only() -> None:
    ranks = Ranks()
    epoch = ranks.begin(2)
    ranks.result(epoch, 1)
    ranks.result(epoch, 2, identity=b"1")
    ranks.result(step.Epoch(core_incarnation=6, counter=1), 2)
    ranks.result(epoch, 2)
    events = ranks.link.take_events()
    assert [e.result.step for e in events if isinstance(e, StepDone)] == [1, 2]
    assert len(events) == 2


def test_late_results_of_an_old_epoch_are_dropped_in_the_next_one() -> None:
    """Steps count from 1 in each epoch: only the epoch tells an old result from a new one."""
    ranks = Ranks()
    old = ranks.begin()
    ranks.hello(b"0", make_hello(welcomed_epoch=old))
    new = ranks.told()[-1][1].welcome.epoch
    assert new.counter == old.counter + 1
    ranks.result(old, 1)
    ranks.say(b"0", step.RankMessage(ready=step.Ready(epoch=new)))
    ranks.result(old, 1)
    ranks.result(old, 2)
    ranks.result(new, 1)
    ended, begun, done = ranks.link.take_events()
    assert isinstance(ended, EpochEnded)
    assert isinstance(begun, EpochBegun)
    assert isinstance(done, StepDone)
    assert done.result.step == 1
    assert ranks.link.epoch == new


def test_gap_in_results_ends_the_epoch_and_asks_for_hello() -> None:
    ranks = Ranks()
    epoch = ranks.begin()
    ranks.result(epoch, 2)
    assert ranks.link.take_events() == [EpochEnded(cause="bad_result", was_fatal=False)]
    assert ranks.kinds() == [(b"0", "reset")]
    ranks.hello(b"0", make_hello(welcomed_epoch=epoch))
    ((_, welcome),) = ranks.told()
    assert welcome.welcome.epoch.counter == 2


def test_malformed_result_ends_the_epoch() -> None:
    ranks = Ranks()
    epoch = ranks.begin()
    bad = step.StepResult(epoch=epoch, step=1, tokens=b"123")
    ranks.say(b"0", step.RankMessage(result=bad))
    assert ranks.link.take_events() == [EpochEnded(cause="bad_result", was_fatal=False)]
    ranks.link.receive(b"0", b"\xff\xff", 0.0)  # no RankMessage at all: dropped
    assert ranks.link.take_events() == []


def test_hello_that_crossed_the_welcome_is_ignored_and_one_after_it_ends_the_epoch() -> None:
    ranks = Ranks()
    epoch = ranks.begin()
    ranks.hello(b"0", make_hello())
    assert ranks.link.take_events() == []
    assert ranks.link.epoch == epoch
    ranks.hello(b"0", make_hello(welcomed_epoch=epoch, reason="gap"))
    assert ranks.link.take_events() == [EpochEnded(cause="rank_asked", was_fatal=False)]


def test_welcomed_rank_with_a_fresh_socket_ends_the_epoch() -> None:
    ranks = Ranks()
    ranks.begin(2)
    ranks.hello(b"new", make_hello(1, 2))
    assert ranks.link.take_events() == [EpochEnded(cause="rank_asked", was_fatal=False)]
    assert ranks.kinds() == [(b"0", "reset"), (b"1", "reset")]
    ranks.hello(b"0", make_hello(0, 2))
    assert ranks.kinds() == [(b"0", "welcome"), (b"new", "welcome")]


@pytest.mark.parametrize("state", ["full", "gone"])
def test_plan_that_only_some_ranks_took_ends_the_epoch(state: str) -> None:
    ranks = Ranks()
    ranks.begin(2)
    getattr(ranks.sender, state).add(b"1")
    ranks.link.send_plan(b"plan", 0.0)
    assert ranks.link.epoch is None
    fatal = state == "gone"
    assert ranks.link.take_events() == [EpochEnded(cause="plan_not_sent", was_fatal=fatal)]


def test_ranks_that_launched_different_steps_are_killed() -> None:
    ranks = Ranks()
    epoch = ranks.begin(2)
    ranks.link.reset("test", cause="bad_result", now=0.0)
    ranks.hello(b"0", make_hello(0, 2, welcomed_epoch=epoch, last_epoch=epoch, last_step=4))
    ranks.hello(b"1", make_hello(1, 2, welcomed_epoch=epoch, last_epoch=epoch, last_step=3))
    assert list(ranks.link.kill_orders) == [GROUP]
    assert "rank 1" in ranks.link.kill_orders[GROUP]
    ranks.told()
    ranks.hello(b"0", make_hello(0, 2))
    ranks.hello(b"1", make_hello(1, 2))
    assert ranks.told() == []  # what the killed group says does not count


def test_single_rank_may_have_launched_any_step() -> None:
    ranks = Ranks()
    epoch = ranks.begin()
    ranks.link.reset("test", cause="bad_result", now=0.0)
    ranks.told()
    ranks.hello(b"0", make_hello(welcomed_epoch=epoch, last_epoch=epoch, last_step=4))
    assert ranks.kinds() == [(b"0", "welcome")]


def test_kill_order_stands_until_the_supervisor_names_another_group() -> None:
    ranks = Ranks()
    ranks.begin()
    ranks.link.note_group(control.GroupState(group_incarnation=GROUP), 0.0)
    ranks.link.kill("stuck", cause="step_overdue", now=0.0)
    assert ranks.link.take_events() == [EpochEnded(cause="step_overdue", was_fatal=True)]
    ranks.link.note_group(control.GroupState(group_incarnation=GROUP), 0.0)
    assert ranks.link.kill_orders == {GROUP: "stuck"}
    ranks.link.note_group(control.GroupState(), 0.0)
    assert ranks.link.kill_orders == {}


def test_supervisors_word_that_the_group_is_gone_ends_the_epoch() -> None:
    ranks = Ranks()
    ranks.begin()
    ranks.link.note_group(control.GroupState(group_incarnation=GROUP), 0.0)
    assert ranks.link.take_events() == []
    state = control.GroupState(group_incarnation=OTHER_GROUP, last_death="rank 0 ended")
    ranks.link.note_group(state, 0.0)
    assert ranks.link.take_events() == [EpochEnded(cause="rank_died", was_fatal=True)]
    ranks.told()
    ranks.hello(b"n", make_hello(group_incarnation=OTHER_GROUP))
    assert ranks.kinds() == [(b"n", "welcome")]


def test_hellos_of_the_group_that_runs_survive_the_end_of_the_former() -> None:
    ranks = Ranks()
    ranks.begin(2)
    ranks.hello(b"n0", make_hello(0, 2, group_incarnation=OTHER_GROUP, pid=900))
    ranks.link.note_group(control.GroupState(group_incarnation=OTHER_GROUP), 0.0)
    ranks.told()
    ranks.hello(b"n1", make_hello(1, 2, group_incarnation=OTHER_GROUP, pid=901))
    assert ranks.kinds() == [(b"n0", "welcome"), (b"n1", "welcome")]


def test_another_complete_group_takes_over_and_the_former_is_killed() -> None:
    ranks = Ranks()
    ranks.begin()
    ranks.hello(b"n", make_hello(group_incarnation=OTHER_GROUP))
    assert ranks.link.take_events() == [EpochEnded(cause="rank_died", was_fatal=True)]
    assert list(ranks.link.kill_orders) == [GROUP]
    assert ranks.told()[-1][1].welcome.group_incarnation == OTHER_GROUP


def test_group_that_never_becomes_complete_or_ready_is_killed() -> None:
    ranks = Ranks()
    ranks.hello(b"0", make_hello(0, 2), now=100.0)
    ranks.link.tick(109.9)
    assert ranks.link.kill_orders == {}
    ranks.link.tick(110.0)
    assert list(ranks.link.kill_orders) == [GROUP]

    ranks = Ranks()
    ranks.hello(b"0", make_hello(), now=100.0)
    ranks.link.tick(110.0)
    assert list(ranks.link.kill_orders) == [GROUP]


def test_busy_extends_a_handshake_until_the_rank_is_heard() -> None:
    ranks = Ranks()
    ranks.hello(b"0", make_hello(0, 2), now=100.0)
    busy = step.RankMessage(busy=control.Busy(reason="loading", limit_ms=60_000))
    ranks.say(b"1", busy, now=101.0)
    assert ranks.link.busy_until == 161.0
    assert "loading" in ranks.link.condition
    ranks.link.tick(150.0)
    assert ranks.link.kill_orders == {}
    ranks.say(b"1", step.RankMessage(beat=step.RankBeat()), now=151.0)
    assert ranks.link.busy_until == 0.0
    ranks.link.tick(152.0)
    assert list(ranks.link.kill_orders) == [GROUP]


def test_beats_go_to_every_rank_and_find_the_dead() -> None:
    ranks = Ranks()
    epoch = ranks.begin(2)
    ranks.sender.full.add(b"0")
    ranks.link.tick(1.0)
    ((who, message),) = ranks.told()
    assert who == b"1"
    assert message.beat.epoch == epoch
    assert ranks.link.epoch == epoch  # a full socket only loses the beat
    ranks.sender.gone.add(b"1")
    ranks.link.tick(1.5)
    assert ranks.link.take_events() == [EpochEnded(cause="rank_died", was_fatal=True)]


def test_fatal_rank_ends_the_epoch_and_its_group() -> None:
    ranks = Ranks()
    epoch = ranks.begin(2)
    fatal = step.Fatal(epoch=epoch, step=3, message="out of memory")
    ranks.say(b"1", step.RankMessage(fatal=fatal))
    assert ranks.link.take_events() == [EpochEnded(cause="rank_died", was_fatal=True)]
    assert "out of memory" in ranks.link.kill_orders[GROUP]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"protocol_version": 3}, "version 3"),
        ({"world_size": 1, "rank": 1}, "below world_size"),
        ({"max_model_len": 1}, "max_model_len"),
    ],
)
def test_hello_that_cannot_be_is_answered_with_shutdown(
    fields: dict[str, object], rule: str
) -> None:
    ranks = Ranks()
    ranks.hello(b"0", make_hello(**fields))  # type: ignore[arg-type]  # fields by name
    ((who, message),) = ranks.told()
    assert who == b"0"
    assert rule in message.shutdown.reason
    assert rule in ranks.link.condition


def test_second_process_for_a_rank_is_sent_away() -> None:
    ranks = Ranks()
    epoch = ranks.begin()
    ranks.hello(b"x", make_hello(pid=999))
    ((who, message),) = ranks.told()
    assert (who, message.WhichOneof("kind")) == (b"x", "shutdown")
    assert ranks.link.epoch == epoch


def test_rank_of_another_world_is_sent_away() -> None:
    ranks = Ranks()
    ranks.begin()
    ranks.hello(b"x", make_hello(1, 2))
    ((who, message),) = ranks.told()
    assert (who, message.WhichOneof("kind")) == (b"x", "shutdown")
