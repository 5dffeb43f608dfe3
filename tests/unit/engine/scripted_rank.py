"""A rank in a thread that reads step.proto by itself: a second implementation of the contract.

The next token is a hash of all tokens that the slot's block table leads to, so that a wrong table,
a wrong position or a stale block changes the stream. Greedy only.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash
import zmq

from octavo.internal.v1 import step_pb2 as step

VOCAB_SIZE = 997
MASK_BYTES = 4 * -(-VOCAB_SIZE // 32)
SILENCE_LIMIT_S = 1.5


def next_token(history: Sequence[int]) -> int:
    """The token after these."""
    return xxhash.xxh3_64_intdigest(np.array(history, "<i4").tobytes()) % VOCAB_SIZE


def allowed_from(token: int, mask: bytes | None) -> int:
    """The first id from a token on that a mask allows."""
    if mask is None:
        return token
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:VOCAB_SIZE]
    return (token + int(np.argmax(np.roll(bits, -token)))) % VOCAB_SIZE


def expected_tokens(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy stream of a prompt."""
    history = list(prompt)
    for _ in range(num_tokens):
        history.append(next_token(history))
    return history[len(prompt) :]


@dataclass
class Slot:
    """One place of the resident batch."""

    generation: int
    table: list[int] = field(default_factory=list)
    next_position: int = 0
    last_token: int | None = None


Row = tuple[int, int, list[int], bool]  # slot, start position, tokens, samples


@dataclass
class Script:
    """What goes wrong, by step of the first epoch in which it is reached; each happens once."""

    hang_at: int | None = None
    die_at: int | None = None
    skip_plan_at: int | None = None
    wrong_position_at: int | None = None
    step_s: float = 0.0

    def is_due(self, name: str, number: int) -> bool:
        """Whether a fault happens at this step; it does not happen again."""
        if getattr(self, name) != number:
            return False
        setattr(self, name, None)
        return True


class ScriptedRank(threading.Thread):
    """Runs until `stop`. `group` names its start; give a new rank a new one."""

    def __init__(
        self,
        endpoint: str,
        *,
        group: int,
        rank: int = 0,
        world_size: int = 1,
        num_blocks: int = 200,
        block_size: int = 4,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 256,
        script: Script | None = None,
        protocol_version: int = 1,
        model_digest: bytes = b"model",
    ) -> None:
        super().__init__(name=f"rank-{rank}-of-{group}", daemon=True)
        self._endpoint = endpoint
        self._script = script or Script()
        self._hello = step.Hello(
            protocol_version=protocol_version,
            group_incarnation=group,
            rank=rank,
            world_size=world_size,
            model_digest=model_digest,
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=400,
            vocab_size=VOCAB_SIZE,
            pid=1000 * group + rank + 1,
            model_type="scripted",
        )
        self._kv = np.zeros((num_blocks, block_size), np.int64)
        self._slots: dict[int, Slot] = {}
        self._epoch: step.Epoch | None = None
        self._expected_step = 1
        self._pending: deque[step.StepPlan] = deque()
        self._masks = b""
        self._row_masks: dict[int, bytes] = {}
        self._stop_event = threading.Event()
        self.hellos: list[str] = []
        self.shut_down_for: str | None = None
        self.num_steps = 0
        self.num_rows = 0

    def stop(self) -> None:
        """Ends the thread; returns when it has ended."""
        self._stop_event.set()
        self.join(timeout=10)
        assert not self.is_alive()

    # --- the thread ---

    def run(self) -> None:
        with zmq.Context() as context:
            self._context = context
            self._open("start")
            heard_at = time.monotonic()
            while not self._stop_event.is_set() and self.shut_down_for is None:
                if not self._socket.poll(20):
                    if time.monotonic() - heard_at > SILENCE_LIMIT_S:
                        self._socket.close()
                        self._open("silence")
                        heard_at = time.monotonic()
                    continue
                message = step.CoreToRank.FromString(self._socket.recv())
                self._take(message)
                heard_at = time.monotonic()
            self._socket.close()

    def _open(self, reason: str) -> None:
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, b"r" + secrets.token_bytes(8))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._endpoint)
        self._say_hello(reason)

    def _say_hello(self, reason: str) -> None:
        self._slots = {}
        self._pending.clear()
        self._masks = b""
        self._epoch = None
        self._hello.reason = reason
        self.hellos.append(reason)
        self._send(step.RankMessage(hello=self._hello))

    def _send(self, message: step.RankMessage) -> None:
        self._socket.send(message.SerializeToString())

    def _take(self, message: step.CoreToRank) -> None:
        kind = message.WhichOneof("kind")
        if kind == "beat":
            beat = step.RankBeat(last_step=self._hello.last_step)
            self._send(step.RankMessage(beat=beat))
        elif kind == "welcome":
            assert message.welcome.group_incarnation == self._hello.group_incarnation
            self._epoch = message.welcome.epoch
            self._hello.welcomed_epoch.CopyFrom(self._epoch)
            self._slots, self._expected_step = {}, 1
            self._pending.clear()
            self._masks = b""
            self._send(step.RankMessage(ready=step.Ready(epoch=self._epoch)))
        elif kind == "reset":
            if self._epoch is not None and message.reset.epoch == self._epoch:
                self._say_hello("reset by core")
        elif kind == "shutdown":
            self.shut_down_for = message.shutdown.reason
        elif kind == "plan" and message.plan.epoch == self._epoch:
            self._pending.append(message.plan)
        elif kind == "late_inputs" and message.late_inputs.epoch == self._epoch:
            late = message.late_inputs
            assert self._pending, "masks for no step"
            rows = len(self._pending[0].awaits_mask_rows) // 4
            assert late.step == self._pending[0].step
            assert len(late.masks) == rows * MASK_BYTES
            self._masks = late.masks
        self._run_pending()

    def _run_pending(self) -> None:
        """Runs the plans that lack no masks, in order."""
        while self._pending and (self._masks or not self._pending[0].awaits_mask_rows):
            plan, masks, self._masks = self._pending.popleft(), self._masks, b""
            self._row_masks = {}
            for index, row in enumerate(ints(plan.awaits_mask_rows)):
                self._row_masks[row] = masks[index * MASK_BYTES : (index + 1) * MASK_BYTES]
            self._take_plan(plan)

    def _take_plan(self, plan: step.StepPlan) -> None:
        if self._script.is_due("skip_plan_at", plan.step):
            return
        if plan.step != self._expected_step:
            self._say_hello(f"gap: expected step {self._expected_step}, got {plan.step}")
            return
        if self._script.is_due("hang_at", plan.step):
            self._stop_event.wait(30)
            return
        if self._script.is_due("die_at", plan.step):
            self._stop_event.set()
            return
        if self._script.is_due("wrong_position_at", plan.step):
            next(iter(self._slots.values())).next_position += 1
        time.sleep(self._script.step_s)
        self._expected_step += 1
        tokens = self._run_step(plan)
        if tokens is None:
            self._say_hello(f"checksum of step {plan.step}")
            return
        self._hello.last_epoch.CopyFrom(plan.epoch)
        self._hello.last_step = plan.step
        self.num_steps += 1
        if self._hello.rank == 0:
            result = step.StepResult(
                epoch=plan.epoch, step=plan.step, tokens=np.array(tokens, "<i4").tobytes()
            )
            self._send(step.RankMessage(result=result))

    def _run_step(self, plan: step.StepPlan) -> list[int] | None:
        for start in plan.starts:
            known = self._slots.get(start.slot)
            assert known is None or known.generation < start.generation
            self._slots[start.slot] = Slot(start.generation)
        blocks = (plan.new_block_slots, plan.new_block_indexes, plan.new_block_ids)
        for slot, index, block in zip(*(ints(column) for column in blocks), strict=True):
            table = self._slots[slot].table
            assert index == len(table), "block tables are append-only"
            assert 1 <= block < len(self._kv)
            table.append(block)
        rows = list(self._rows(plan))
        self.num_rows += len(rows)
        if checksum(rows, self._slots) != plan.position_checksum:
            return None
        outcomes = [self._run_row(row, self._row_masks.get(at)) for at, row in enumerate(rows)]
        return [token for token in outcomes if token is not None]

    def _rows(self, plan: step.StepPlan) -> list[Row]:
        chunk_columns = (
            *(plan.chunk_rows, plan.chunk_generations, plan.chunk_num_tokens),
            plan.chunk_start_positions,
        )
        chunks = list(zip(*(ints(c) for c in chunk_columns), plan.chunk_samples, strict=True))
        tokens = ints(plan.chunk_tokens)
        by_row = {}
        for row, generation, count, start, samples in chunks:
            by_row[row] = (generation, start, tokens[:count], bool(samples))
            tokens = tokens[count:]
        assert not tokens
        slots = ints(plan.slots)
        assert len(set(slots)) == len(slots) > 0
        rows = []
        for row, slot in enumerate(slots):
            state = self._slots[slot]
            if row in by_row:
                generation, start, chunk, samples = by_row[row]
                assert generation == state.generation
            else:
                assert not any(earlier in by_row for earlier in range(row)), "steady rows first"
                assert state.last_token is not None, "a steady row follows a sampled one"
                start, chunk, samples = state.next_position, [state.last_token], True
            rows.append((slot, start, chunk, samples))
        return rows

    def _run_row(self, row: Row, mask: bytes | None) -> int | None:
        slot, start, tokens, samples = row
        state = self._slots[slot]
        size = self._kv.shape[1]
        for position, token in enumerate(tokens, start):
            self._kv[state.table[position // size], position % size] = token
        state.next_position = start + len(tokens)
        if not samples:
            state.last_token = None
            return None
        history = self._kv[state.table].reshape(-1)[: state.next_position].tolist()
        state.last_token = allowed_from(next_token(history), mask)
        return state.last_token


def ints(column: bytes) -> list[int]:
    """A column's values."""
    values: list[int] = np.frombuffer(column, "<i4").tolist()
    return values


def checksum(rows: list[Row], slots: dict[int, Slot]) -> int:
    """The checksum of a step's rows."""
    columns = (
        [slot for slot, _, _, _ in rows],
        [slots[slot].generation for slot, _, _, _ in rows],
        [start for _, start, _, _ in rows],
    )
    data = b"".join(np.array(column, "<i4").tobytes() for column in columns)
    return xxhash.xxh3_64_intdigest(data)
