"""A rank's loop, channel and batch over real sockets, against a scripted core."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from octavo.internal.v1 import control_pb2, step_pb2
from tests.fakes.hash_faults import Faults
from tests.fakes.hash_runner import HashRunner
from tests.fakes.hash_tokens import expected_tokens
from tests.fakes.plan_writer import Chunk, PlanWriter, from_int32s, int32s
from tests.fakes.scripted_core import NothingCame, ScriptedCore
from worker_svc.batch_step import BatchStep, SampledRows
from worker_svc.channel import RankChannel
from worker_svc.channel_events import Introduction
from worker_svc.dealer import Dealer
from worker_svc.rank_loop import RankLoop
from worker_svc.rank_model import ModelFacts
from worker_svc.step_runner import StepOutcome, StepRunner, StepTiming, SynchronousRunner

VOCAB_SIZE = 100
NUM_BLOCKS = 64
BLOCK_SIZE = 4
GROUP = 4242
PROMPT = [5, 6, 7, 8, 9, 10]


class TinyModel:
    """A `RankModel` over any runner."""

    facts = ModelFacts(
        model_type="hash-token",
        digest=b"d" * 16,
        vocab_size=VOCAB_SIZE,
        max_model_len=200,
        num_blocks=NUM_BLOCKS,
    )

    def __init__(self, make_runner: Callable[[int, int], StepRunner]) -> None:
        self._make_runner = make_runner

    def prepare(self, *, num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        return self._make_runner(num_blocks, num_tokenizer_ids)


def hash_model(faults: Faults | None = None) -> TinyModel:
    def make(num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        runner = HashRunner(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            num_slots=8,
            vocab_size=num_tokenizer_ids,
            faults=faults,
        )
        return SynchronousRunner(runner.execute, on_epoch=runner.forget)

    return TinyModel(make)


@contextmanager
def running_rank(
    run_dir: Path, model: TinyModel | None = None, *, rank: int = 0, silence_limit_s: float = 30.0
) -> Iterator["queue.Queue[Exception | None]"]:
    """A rank in a thread; the queue gets what its loop ended with."""
    ended: queue.Queue[Exception | None] = queue.Queue()
    stop, wake = threading.Event(), socket.socketpair()
    introduction = Introduction(
        group_incarnation=GROUP,
        rank=rank,
        world_size=1,
        model_digest=TinyModel.facts.digest,
        model_type=TinyModel.facts.model_type,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=200,
        vocab_size=VOCAB_SIZE,
        pid=1,
    )

    def serve() -> None:
        with zmq.Context() as context:
            dealer = Dealer(
                context,
                f"ipc://{run_dir}/steps.sock",
                name="rank",
                wake_fd=wake[0].fileno(),
                silence_limit_s=silence_limit_s,
            )
            try:
                RankLoop(
                    channel=RankChannel(dealer, introduction),
                    model=model or hash_model(),
                    stop_requested=stop.is_set,
                ).run()
                ended.put(None)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                ended.put(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        wake[1].send(b"!")
        thread.join(timeout=20)
        for end in wake:
            end.close()
        assert not thread.is_alive()


@pytest.fixture
def core(tmp_path: Path) -> Iterator[ScriptedCore]:
    with ScriptedCore(tmp_path) as scripted:
        yield scripted


@pytest.fixture
def rank(tmp_path: Path, core: ScriptedCore) -> Iterator["queue.Queue[Exception | None]"]:
    with running_rank(tmp_path) as ended:
        yield ended


Ended = queue.Queue[Exception | None]


def start_prompt(writer: PlanWriter, *, slot: int = 0, first_block: int = 1) -> step_pb2.StepPlan:
    """A plan that computes the whole prompt in a slot, with room for 40 tokens."""
    start = writer.start(slot, num_prompt_tokens=len(PROMPT))
    return writer.plan(
        chunks=[Chunk(slot=slot, tokens=PROMPT, position=0, start=start)],
        new_blocks=[(slot, first_block + index) for index in range(10)],
    )


def stream(core: ScriptedCore, writer: PlanWriter, *, num_tokens: int) -> list[int]:
    """Greedy tokens of the prompt in slot 0."""
    tokens = core.run(start_prompt(writer))
    while len(tokens) < num_tokens:
        tokens += core.run(writer.plan(steady=[0]))
    return tokens


def test_hello_presents_the_rank(core: ScriptedCore, rank: Ended) -> None:
    [hello] = core.hellos()
    assert hello.protocol_version == 1
    assert (hello.group_incarnation, hello.rank, hello.world_size) == (GROUP, 0, 1)
    assert (hello.model_type, hello.model_digest) == ("hash-token", b"d" * 16)
    assert (hello.block_size, hello.num_blocks, hello.vocab_size) == (4, NUM_BLOCKS, VOCAB_SIZE)
    assert (hello.max_num_seqs, hello.max_num_batched_tokens, hello.max_model_len) == (8, 64, 200)
    assert not hello.HasField("last_epoch")
    assert not hello.HasField("welcomed_epoch")
    assert (hello.last_step, hello.reason) == (0, "start")


def test_a_rank_says_busy_before_it_prepares(core: ScriptedCore, rank: Ended) -> None:
    hellos = core.hellos()
    core.epoch = step_pb2.Epoch(core_incarnation=core.incarnation, counter=1)
    core.send(
        step_pb2.CoreToRank(
            welcome=step_pb2.Welcome(
                epoch=core.epoch,
                group_incarnation=hellos[0].group_incarnation,
                num_blocks=NUM_BLOCKS,
                max_steps_in_flight=2,
                num_tokenizer_ids=VOCAB_SIZE,
            )
        )
    )
    _, message = core.next("busy")
    assert message.busy.limit_ms > 0
    _, message = core.next("ready")
    assert message.ready.epoch == core.epoch


def test_a_greedy_stream_equals_the_pure_function(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    tokens = stream(core, writer, num_tokens=30)
    assert tokens == expected_tokens(PROMPT, 30, vocab_size=VOCAB_SIZE)


def test_ids_that_the_tokenizer_lacks_are_never_chosen(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos(), num_tokenizer_ids=20)
    assert stream(core, writer, num_tokens=30) == expected_tokens(PROMPT, 30, vocab_size=20)


def test_two_plans_sent_at_once_are_answered_in_order(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    plans = [start_prompt(writer), writer.plan(steady=[0])]
    for plan in plans:
        core.send_plan(plan)
    results = [core.result() for _ in plans]
    assert [result.step for result in results] == [1, 2]
    tokens = [from_int32s(result.tokens)[0] for result in results]
    assert tokens == expected_tokens(PROMPT, 2, vocab_size=VOCAB_SIZE)


def test_beats_are_answered_with_the_last_step(core: ScriptedCore, rank: Ended) -> None:
    stream(core, core.welcome(core.hellos()), num_tokens=3)
    core.wait_for(
        lambda: True if core.next("beat")[1].beat.last_step == 3 else None, what="beat of step 3"
    )


def test_a_gap_ends_the_epoch_with_a_hello(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    writer.plan(steady=[0])  # lost on the way
    core.send_plan(writer.plan(steady=[0]))
    [hello] = core.hellos()
    assert hello.reason == "gap: expected step 2, got 3"
    assert (hello.last_epoch, hello.last_step) == (core.epoch, 1)
    assert hello.welcomed_epoch == core.epoch
    tokens = stream(core, core.welcome([hello]), num_tokens=5)
    assert tokens == expected_tokens(PROMPT, 5, vocab_size=VOCAB_SIZE)


def test_a_plan_of_another_epoch_is_dropped(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    stranger = PlanWriter(step_pb2.Epoch(core_incarnation=5, counter=1), block_size=BLOCK_SIZE)
    core.send_plan(start_prompt(stranger))
    assert core.run(start_prompt(writer)) == expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


def test_a_wrong_checksum_ends_the_epoch_before_the_step_runs(
    core: ScriptedCore, rank: Ended
) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    plan = writer.plan(steady=[0])
    plan.position_checksum ^= 1
    core.send_plan(plan)
    [hello] = core.hellos()
    assert hello.reason.startswith("position_checksum: ")
    assert hello.last_step == 1


def test_a_reset_ends_the_epoch_after_the_plans_before_it(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    core.send_plan(start_prompt(writer))
    core.send_plan(writer.plan(steady=[0]))
    core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch, reason="because")))
    core.send_plan(writer.plan(steady=[0]))
    [hello] = core.hellos()
    assert hello.reason == "reset by core: because"
    assert (hello.last_epoch, hello.last_step) == (core.epoch, 2)


def test_a_reset_of_an_epoch_that_was_left_is_ignored(core: ScriptedCore, rank: Ended) -> None:
    core.welcome(core.hellos())
    old = step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch, reason="again"))
    core.send(old)
    writer = core.welcome(core.hellos())
    core.send(old)
    assert core.run(start_prompt(writer)) == expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


def test_a_reset_without_an_epoch_is_always_obeyed(core: ScriptedCore, rank: Ended) -> None:
    core.welcome(core.hellos())
    core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(reason="who are you?")))
    [hello] = core.hellos()
    assert hello.welcomed_epoch == core.epoch


def test_a_new_epoch_forgets_what_the_cache_held(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
    writer = core.welcome(core.hellos())
    hit = Chunk(slot=0, tokens=PROMPT[4:], position=4, start=writer.start(0))
    tokens = core.run(writer.plan(chunks=[hit], new_blocks=[(0, 1), (0, 2)]))
    assert tokens != expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


def test_a_message_that_cannot_be_decoded_ends_the_epoch(core: ScriptedCore, rank: Ended) -> None:
    core.welcome(core.hellos())
    core.send(b"\xff\xff\xff")
    assert core.hellos()[0].reason == "a message that cannot be decoded"


def test_a_welcome_for_another_group_is_ignored(core: ScriptedCore, rank: Ended) -> None:
    hellos = core.hellos()
    stranger = step_pb2.Hello()
    stranger.CopyFrom(hellos[0])
    stranger.group_incarnation = 1
    with pytest.raises(NothingCame):
        core.welcome([stranger], limit_s=0.3)
    writer = core.welcome(hellos)
    assert core.run(start_prompt(writer)) == expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


def test_silence_brings_a_hello_from_a_new_identity(tmp_path: Path, core: ScriptedCore) -> None:
    core.beats = False
    with running_rank(tmp_path, silence_limit_s=0.3):
        hellos = core.hellos()
        before = dict(core.ranks)
        core.welcome(hellos)
        [hello] = core.hellos()
        assert hello.reason == "no sign of life from the core"
        assert core.ranks[0] != before[0]
        assert hello.welcomed_epoch == core.epoch


def test_beats_alone_keep_a_connection(tmp_path: Path, core: ScriptedCore) -> None:
    with running_rank(tmp_path, silence_limit_s=1.0):
        core.welcome(core.hellos())
        with pytest.raises(NothingCame):
            core.next("hello", limit_s=2.0)


def test_silence_does_not_count_while_a_step_runs(tmp_path: Path, core: ScriptedCore) -> None:
    with running_rank(tmp_path, hash_model(Faults(step_s=0.8)), silence_limit_s=0.5):
        writer = core.welcome(core.hellos())
        assert stream(core, writer, num_tokens=3) == expected_tokens(
            PROMPT, 3, vocab_size=VOCAB_SIZE
        )


def test_a_restarted_core_is_greeted_and_told_of_the_old_epoch(tmp_path: Path) -> None:
    with running_rank(tmp_path, silence_limit_s=0.5):
        with ScriptedCore(tmp_path) as first:
            stream(first, first.welcome(first.hellos()), num_tokens=2)
            old_epoch = first.epoch
        with ScriptedCore(tmp_path, incarnation=78) as second:
            [hello] = second.hellos()
            assert (hello.welcomed_epoch, hello.last_epoch) == (old_epoch, old_epoch)
            assert hello.last_step == 2
            tokens = stream(second, second.welcome([hello]), num_tokens=4)
            assert tokens == expected_tokens(PROMPT, 4, vocab_size=VOCAB_SIZE)


def test_a_rank_waits_for_a_core_that_comes_later(tmp_path: Path) -> None:
    with running_rank(tmp_path, silence_limit_s=0.5), ScriptedCore(tmp_path) as late:
        assert late.hellos()[0].reason == "start"


def allow_only(*token_ids: int) -> list[int]:
    words = np.zeros(4, np.uint32)
    for token in token_ids:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words.view(np.int32).tolist()


def masks(core: ScriptedCore, step: int, words: list[int]) -> step_pb2.CoreToRank:
    late = step_pb2.LateInputs(epoch=core.epoch, step=step, masks=int32s(words))
    return step_pb2.CoreToRank(late_inputs=late)


def test_a_step_waits_for_its_masks_and_holds_back_the_next(
    core: ScriptedCore, rank: Ended
) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    core.send_plan(writer.plan(steady=[0], masked_rows=[0]))
    core.send_plan(start_prompt(writer, slot=1, first_block=20))
    with pytest.raises(NothingCame):
        core.result(limit_s=0.3)
    core.send(masks(core, 2, allow_only(41)))
    results = [core.result(), core.result()]
    assert [result.step for result in results] == [2, 3]
    assert from_int32s(results[0].tokens) == [41]
    assert from_int32s(results[1].tokens) == expected_tokens(PROMPT, 1, vocab_size=VOCAB_SIZE)


def test_a_row_whose_mask_allows_nothing_fails_alone(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    other = start_prompt(writer, slot=1, first_block=20)
    core.run(other)
    core.send_plan(writer.plan(steady=[1, 0], masked_rows=[0]))
    core.send(masks(core, 3, [0, 0, 0, 0]))
    result = core.result()
    assert from_int32s(result.failed_rows) == [0]
    assert from_int32s(result.token_counts) == [0, 1]
    second = expected_tokens(PROMPT, 2, vocab_size=VOCAB_SIZE)[1]
    assert from_int32s(result.tokens) == [second]


@pytest.mark.parametrize(
    ("step", "words", "reason"),
    [
        (2, [1, 2], "late_inputs.masks: "),
        (5, [1, 2, 3, 4], "late_inputs.step: step 5 waits for no masks"),
        (1, [1, 2, 3, 4], "late_inputs.step: step 1 waits for no masks"),
    ],
)
def test_masks_that_do_not_fit_end_the_epoch(
    core: ScriptedCore, rank: Ended, step: int, words: list[int], reason: str
) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    core.send_plan(writer.plan(steady=[0], masked_rows=[0]))
    core.send(masks(core, step, words))
    [hello] = core.hellos()
    assert hello.reason.startswith(reason)
    assert hello.last_step == 1


def test_a_reset_drops_a_step_that_lacks_its_masks(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    core.run(start_prompt(writer))
    core.send_plan(writer.plan(steady=[0], masked_rows=[0]))
    core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
    [hello] = core.hellos()
    assert hello.last_step == 1
    tokens = stream(core, core.welcome([hello]), num_tokens=3)
    assert tokens == expected_tokens(PROMPT, 3, vocab_size=VOCAB_SIZE)


def test_a_failed_row_counts_as_sampled_with_token_0(tmp_path: Path, core: ScriptedCore) -> None:
    with running_rank(tmp_path, hash_model(Faults(fail_every=1))):
        writer = core.welcome(core.hellos())
        core.send_plan(start_prompt(writer))
        result = core.result()
        assert from_int32s(result.failed_rows) == [0]
        assert from_int32s(result.token_counts) == [0]
        assert result.tokens == b""
        core.send_plan(writer.plan(steady=[0]))
        assert from_int32s(core.result().failed_rows) == [0]


def test_a_shutdown_finishes_the_steps_before_it(core: ScriptedCore, rank: Ended) -> None:
    writer = core.welcome(core.hellos())
    core.send_plan(start_prompt(writer))
    core.send(step_pb2.CoreToRank(shutdown=control_pb2.Shutdown(reason="enough")))
    assert core.result().step == 1
    assert rank.get(timeout=20) is None


def test_an_exception_is_told_to_the_core_before_the_rank_ends(
    tmp_path: Path, core: ScriptedCore
) -> None:
    with running_rank(tmp_path, hash_model(Faults(raise_at_step=2))) as ended:
        writer = core.welcome(core.hellos())
        core.run(start_prompt(writer))
        core.send_plan(writer.plan(steady=[0]))
        fatal = core.next("fatal")[1].fatal
        assert fatal.message == "RuntimeError: injected at step 2"
        assert (fatal.epoch, fatal.step) == (core.epoch, 2)
        assert isinstance(ended.get(timeout=20), RuntimeError)


@pytest.mark.parametrize("num_blocks", [1, NUM_BLOCKS - 1, NUM_BLOCKS + 1])
def test_a_rank_that_cannot_be_what_a_welcome_says_ends(
    core: ScriptedCore, rank: Ended, num_blocks: int
) -> None:
    core.welcome(core.hellos())
    core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
    with pytest.raises(NothingCame):
        core.welcome(core.hellos(), num_blocks=num_blocks, limit_s=0.3)
    assert "InvalidWelcome" in core.fatals[0].message
    assert rank.get(timeout=20) is not None


def test_only_rank_0_answers(tmp_path: Path, core: ScriptedCore) -> None:
    with running_rank(tmp_path, rank=1):
        writer = core.welcome(core.hellos(ranks=[1]))
        core.send_plan(start_prompt(writer))
        core.wait_for(
            lambda: True if core.next("beat")[1].beat.last_step == 1 else None, what="step 1"
        )
        with pytest.raises(NothingCame):
            core.result(limit_s=0.3)


class Device:
    """A `StepRunner` as a GPU would be: results come when the test says so."""

    def __init__(self) -> None:
        self.launched: list[BatchStep] = []
        self.num_done = 0
        self.most_in_flight = 0
        self._num_collected = 0

    def begin_epoch(self) -> None:
        assert self._num_collected == len(self.launched)

    def time_limit_ms(self, step: BatchStep) -> int:
        return 10_000 if step.token_ids.size > 1 else 0

    def launch(self, step: BatchStep, *, received_ns: int) -> None:
        assert received_ns > 0
        self.launched.append(step)
        self.most_in_flight = max(self.most_in_flight, len(self.launched) - self._num_collected)

    def is_done(self) -> bool:
        return self.num_done > self._num_collected

    def collect(self) -> StepOutcome:
        self._num_collected += 1
        tokens = np.array([self._num_collected], np.int32)
        rows = SampledRows(tokens=tokens, failed=np.zeros(1, np.bool_))
        return StepOutcome(rows, StepTiming(forward_us=7, stall_us=8, queued_us=9))


def test_a_device_gets_the_next_step_while_one_runs_and_never_a_third(
    tmp_path: Path, core: ScriptedCore
) -> None:
    device = Device()
    with running_rank(tmp_path, TinyModel(lambda *_: device)):
        writer = core.welcome(core.hellos())
        for plan in (start_prompt(writer), writer.plan(steady=[0]), writer.plan(steady=[0])):
            core.send_plan(plan)
        core.wait_for(lambda: True if len(device.launched) == 2 else None, what="two steps")
        with pytest.raises(NothingCame):
            core.result(limit_s=0.2)
        device.num_done = 3
        results = [core.result() for _ in range(3)]
        assert [from_int32s(result.tokens) for result in results] == [[1], [2], [3]]
        first = results[0]
        assert (first.forward_us, first.stall_us, first.queued_us) == (7, 8, 9)
        assert device.most_in_flight == 2


def test_results_of_an_epoch_that_was_left_are_kept_back(
    tmp_path: Path, core: ScriptedCore
) -> None:
    device = Device()
    with running_rank(tmp_path, TinyModel(lambda *_: device)):
        writer = core.welcome(core.hellos())
        core.send_plan(start_prompt(writer))
        core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
        hellos = core.hellos()
        device.num_done = 2
        writer = core.welcome(hellos)
        core.send_plan(start_prompt(writer))
        result = core.result()
        assert (result.epoch, from_int32s(result.tokens)) == (core.epoch, [2])


def test_a_step_that_may_take_long_is_announced(tmp_path: Path, core: ScriptedCore) -> None:
    device = Device()
    with running_rank(tmp_path, TinyModel(lambda *_: device)):
        writer = core.welcome(core.hellos())
        core.send_plan(start_prompt(writer))
        busy = core.next("busy")[1].busy
        assert (busy.reason, busy.limit_ms) == ("a step of 6 tokens", 10_000)
        device.num_done = 1
        assert core.result().step == 1
