"""A rank's conversation with the core: epochs, step numbers, life signs. Knows no batch, no tensor.

`receive` turns messages into events, in order. What belongs to another epoch is dropped here. When
the conversation breaks, from either side, the core is told (Hello) before `EpochLeft` comes out.
"""

import logging
import time

from google.protobuf.message import DecodeError

from octavo.internal.v1 import control_pb2, step_pb2
from worker_svc.channel_events import (
    EpochId,
    EpochLeft,
    Event,
    Introduction,
    MasksReceived,
    PlanReceived,
    ShutDown,
    Welcomed,
)
from worker_svc.dealer import Dealer

_LOGGER = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
_LAST_WORDS_S = 1.0


class RankChannel:
    """The rank's side of `steps.sock`. `connect` before use."""

    def __init__(self, dealer: Dealer, introduction: Introduction) -> None:
        self.introduction = introduction
        self._dealer = dealer
        self._epoch: EpochId | None = None
        self._welcomed_epoch: EpochId | None = None
        self._last_epoch: EpochId | None = None
        self._last_step = 0
        self._next_step = 1
        self._broken = ""

    @property
    def epoch(self) -> EpochId | None:
        """The epoch this rank is in; None between a Hello and a Welcome."""
        return self._epoch

    def connect(self) -> None:
        """Opens the socket and says Hello for the first time."""
        self._dealer.open(self._hello("start"))

    def receive(self, timeout_s: float) -> Event | None:
        """The next event, or None when none came in time."""
        if self._broken:
            return self._reconnect(self._broken)
        payload = self._dealer.receive(timeout_s)
        if payload is not None:
            return self._interpret(payload, time.monotonic_ns())
        if self._dealer.is_silent():
            return self._reconnect("no sign of life from the core")
        return None

    def ready(self, *, prepare_us: int) -> None:
        """Tells the core that plans of this epoch may come."""
        if self._epoch is not None:
            ready = step_pb2.Ready(epoch=_message(self._epoch), prepare_us=prepare_us)
            self._send(step_pb2.RankMessage(ready=ready))

    def launched(self, step: int) -> None:
        """Notes the last step that ran, or was begun: ranks compare it after an epoch."""
        self._last_epoch, self._last_step = self._epoch, step

    def answer(self, result: step_pb2.StepResult, *, epoch: EpochId) -> None:
        """Sends a step's result, unless its epoch was left meanwhile."""
        if epoch == self._epoch:
            result.epoch.CopyFrom(_message(epoch))
            self._send(step_pb2.RankMessage(result=result))

    def busy(self, reason: str, *, limit_ms: int) -> None:
        """Tells the core that this rank will be silent for up to `limit_ms`."""
        busy = control_pb2.Busy(reason=reason, limit_ms=min(limit_ms, 2**32 - 1))
        self._dealer.send(step_pb2.RankMessage(busy=busy).SerializeToString())

    def leave(self, reason: str) -> None:
        """Ends the epoch from this side and says Hello."""
        self._epoch = None
        self._dealer.greet(self._hello(reason))

    def close(self) -> None:
        """Closes the socket; a result just sent still leaves."""
        self._dealer.close(linger_s=_LAST_WORDS_S)

    def fatal(self, message: str, *, step: int) -> None:
        """Says why this rank ends, and closes."""
        epoch = None if self._welcomed_epoch is None else _message(self._welcomed_epoch)
        fatal = step_pb2.Fatal(epoch=epoch, step=step, message=" ".join(message.split()))
        self._dealer.send(step_pb2.RankMessage(fatal=fatal).SerializeToString())
        self.close()

    def _send(self, message: step_pb2.RankMessage) -> None:
        if not self._dealer.send(message.SerializeToString()):
            self._broken = f"the core could not be sent a {message.WhichOneof('kind')}"

    def _reconnect(self, reason: str) -> EpochLeft:
        self._broken = ""
        self._epoch = None
        self._dealer.open(self._hello(reason))
        return EpochLeft(reason)

    def _fault(self, reason: str) -> EpochLeft:
        self.leave(reason)
        return EpochLeft(reason)

    def _interpret(self, payload: bytes, received_ns: int) -> Event | None:
        try:
            message = step_pb2.CoreToRank.FromString(payload)
        except DecodeError:
            return self._fault("a message that cannot be decoded")
        event: Event | None = None
        match message.WhichOneof("kind"):
            case "plan":
                event = self._on_plan(message.plan, received_ns)
            case "late_inputs" if _id_of(message.late_inputs.epoch) == self._epoch:
                event = MasksReceived(message.late_inputs.step, message.late_inputs.masks)
            case "beat":
                beat = step_pb2.RankBeat(last_step=self._last_step)
                self._dealer.send(step_pb2.RankMessage(beat=beat).SerializeToString())
            case "welcome":
                event = self._on_welcome(message.welcome)
            case "reset":
                event = self._on_reset(message.reset)
            case "shutdown":
                event = ShutDown(message.shutdown.reason)
        return event

    def _on_plan(self, plan: step_pb2.StepPlan, received_ns: int) -> Event | None:
        if _id_of(plan.epoch) != self._epoch:
            return None
        if plan.step != self._next_step:
            return self._fault(f"gap: expected step {self._next_step}, got {plan.step}")
        self._next_step += 1
        return PlanReceived(plan, received_ns)

    def _on_welcome(self, welcome: step_pb2.Welcome) -> Event | None:
        if welcome.group_incarnation != self.introduction.group_incarnation:
            _LOGGER.warning("ignored a Welcome meant for group %d", welcome.group_incarnation)
            return None
        epoch = _id_of(welcome.epoch)
        if epoch == self._welcomed_epoch:
            return self._fault(f"welcomed twice to epoch {epoch[1]}")
        self._epoch = self._welcomed_epoch = epoch
        self._next_step = 1
        return Welcomed(
            num_blocks=welcome.num_blocks,
            max_steps_in_flight=welcome.max_steps_in_flight,
            num_tokenizer_ids=welcome.num_tokenizer_ids,
        )

    def _on_reset(self, reset: step_pb2.Reset) -> Event | None:
        if reset.HasField("epoch") and _id_of(reset.epoch) != self._epoch:
            return None
        return self._fault(f"reset by core: {reset.reason}")

    def _hello(self, reason: str) -> bytes:
        said = self.introduction
        _LOGGER.info("hello to the core: %s", reason)
        hello = step_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            group_incarnation=said.group_incarnation,
            rank=said.rank,
            world_size=said.world_size,
            model_digest=said.model_digest,
            block_size=said.block_size,
            num_blocks=said.num_blocks,
            max_num_seqs=said.max_num_seqs,
            max_num_batched_tokens=said.max_num_batched_tokens,
            max_model_len=said.max_model_len,
            vocab_size=said.vocab_size,
            last_epoch=None if self._last_epoch is None else _message(self._last_epoch),
            last_step=self._last_step,
            pid=said.pid,
            reason=reason,
            model_type=said.model_type,
            welcomed_epoch=None if self._welcomed_epoch is None else _message(self._welcomed_epoch),
        )
        return step_pb2.RankMessage(hello=hello).SerializeToString()


def _id_of(epoch: step_pb2.Epoch) -> EpochId:
    return epoch.core_incarnation, epoch.counter


def _message(epoch: EpochId) -> step_pb2.Epoch:
    return step_pb2.Epoch(core_incarnation=epoch[0], counter=epoch[1])
