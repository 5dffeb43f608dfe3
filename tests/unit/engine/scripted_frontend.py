"""A frontend's side of engine.proto, driven by the test's thread. Checks what the contract
promises as it reads.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import zmq

from octavo.internal.v1 import engine_pb2 as engine

LIMIT_S = 60.0


@dataclass
class Output:
    """What was delivered of one output."""

    tokens: list[int] = field(default_factory=list)
    end: engine.OutputEnd | None = None


class ScriptedFrontend:
    """`hello` first. `pump_until` reads until a condition holds, and fails when it never does."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, name: str = "frontend-0"
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self.name = name
        self.incarnation = secrets.randbits(63) | 1
        self.confirms_ends = True
        self._socket: zmq.Socket[bytes] | None = None
        self._reset()

    def _reset(self) -> None:
        self.num_sent = 0
        self.num_received = 0
        self.statuses: list[engine.CoreStatus] = []
        self.accepted: dict[int, engine.Accepted] = {}
        self.rejected: dict[int, engine.Rejected] = {}
        self.attached: dict[int, engine.Attached] = {}
        self.outputs: dict[tuple[int, int], Output] = {}
        self.starts: dict[int, engine.RequestStart] = {}
        self.superseded: list[int] = []
        self.cancel_answers: dict[int, engine.CancelAnswer] = {}
        self.estimates: dict[int, engine.EstimateAnswer] = {}
        self.num_delivers = 0

    def hello(self, *, receive_limit: int = 1000) -> None:
        """A fresh connection, answered."""
        self.greet(receive_limit=receive_limit)
        self.pump_until(lambda: bool(self.statuses))

    def greet(self, *, receive_limit: int = 1000) -> None:
        """A fresh connection."""
        self.close()
        self._reset()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, b"f" + secrets.token_bytes(8))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, receive_limit)
        self._socket.connect(self._endpoint)
        hello = engine.FrontendHello(
            protocol_version=1, name=self.name, incarnation=self.incarnation
        )
        self.send(engine.FrontendToCore(hello=hello))

    def close(self) -> None:
        """Vanishes without a word."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, message: engine.FrontendToCore) -> None:
        """Sends one numbered message."""
        assert self._socket is not None
        self.num_sent += 1
        message.message_number = self.num_sent
        self._socket.send(message.SerializeToString())

    def lose_a_message(self) -> None:
        """A message that never arrives takes a number."""
        self.num_sent += 1

    def beat(self) -> None:
        """Shows that the loop turns."""
        self.send(engine.FrontendToCore(beat=engine.FrontendBeat()))

    def submit(self, number: int, prompt: list[int], **fields: object) -> None:
        """Asks to run a request; a greedy one of 8 tokens unless told otherwise."""
        submit = make_submit(number, prompt, **fields)
        self.send(engine.FrontendToCore(submit=submit))

    def attach(self, number: int, request_id: str, tenant: str = "") -> None:
        """Asks for a request."""
        attach = engine.AttachRequestToFrontend(number=number, tenant=tenant, request_id=request_id)
        self.send(engine.FrontendToCore(attach=attach))

    def cancel(self, call: int, request_id: str) -> None:
        """Asks to end a request."""
        cancel = engine.CancelByName(call=call, request_id=request_id)
        self.send(engine.FrontendToCore(cancel=cancel))

    def detach(self, number: int, *, cancel: bool = False) -> None:
        """Lets go of a request."""
        self.send(engine.FrontendToCore(detach=engine.Detach(number=number, cancel=cancel)))

    def finish(
        self,
        number: int,
        num_tokens: int,
        *,
        reason: engine.EndReason.ValueType,
        output_index: int = 0,
        stop_string: str = "",
    ) -> None:
        """Says where an output ends."""
        finish = engine.Finish(
            number=number,
            output_index=output_index,
            num_tokens=num_tokens,
            reason=reason,
            stop_string=stop_string,
        )
        self.send(engine.FrontendToCore(finish=finish))

    def resume_at(self, number: int, tokens: list[int]) -> None:
        """The output's tokens so far came over an earlier connection."""
        self.outputs[number, 0] = Output(list(tokens))

    def tokens(self, number: int, output_index: int = 0) -> list[int]:
        """Tokens of an output so far."""
        return self.outputs.get((number, output_index), Output()).tokens

    def is_ended(self, number: int, output_index: int = 0) -> bool:
        """Whether an output's end is there."""
        output = self.outputs.get((number, output_index))
        return output is not None and output.end is not None

    def pump_until(self, is_true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Reads messages until the condition holds."""
        end = time.monotonic() + limit_s
        while not is_true():
            assert time.monotonic() < end, "the condition never held"
            self.pump(10)

    def pump(self, wait_ms: int) -> None:
        """Reads what is there, or what comes within the time."""
        assert self._socket is not None
        while self._socket.poll(wait_ms):
            self._take(engine.CoreToFrontend.FromString(self._socket.recv()))
            wait_ms = 0

    def _take(self, message: engine.CoreToFrontend) -> None:
        self.num_received += 1
        assert message.message_number == self.num_received, "the core's messages have no gap"
        kind = message.WhichOneof("kind")
        if kind == "status":
            self.statuses.append(message.status)
            self.beat()
        elif kind == "accepted":
            self.accepted[message.accepted.number] = message.accepted
        elif kind == "rejected":
            self.rejected[message.rejected.number] = message.rejected
        elif kind == "attached":
            self._take_attached(message.attached)
        elif kind == "superseded":
            self.superseded.append(message.superseded.number)
        elif kind == "cancel_answer":
            self.cancel_answers[message.cancel_answer.call] = message.cancel_answer
        elif kind == "estimate_answer":
            self.estimates[message.estimate_answer.call] = message.estimate_answer
        elif kind == "deliver":
            self.num_delivers += 1
            self._take_deliver(message.deliver)

    def _take_attached(self, attached: engine.Attached) -> None:
        self.attached[attached.number] = attached
        for index, output in enumerate(attached.outputs):
            known = Output(ints(output.tokens))
            self.outputs[attached.number, index] = known
            if output.HasField("end"):
                self._take_end(output.end, known)

    def _take_deliver(self, deliver: engine.Deliver) -> None:
        numbers, indexes, firsts = (
            ints(column)
            for column in (deliver.numbers, deliver.output_indexes, deliver.first_token_indexes)
        )
        counts = ints(deliver.token_counts) or [1] * len(numbers)
        tokens = ints(deliver.tokens)
        for number, index, first, count in zip(numbers, indexes, firsts, counts, strict=True):
            assert number in self.accepted or number in self.attached, "the answer comes first"
            output = self.outputs.setdefault((number, index), Output())
            assert first == len(output.tokens), "nothing is repeated or skipped"
            output.tokens += tokens[:count]
            tokens = tokens[count:]
        assert not tokens
        for end in deliver.ends:
            self._take_end(end, self.outputs.setdefault((end.number, end.output_index), Output()))
        for start in deliver.starts:
            assert start.number not in self.starts
            self.starts[start.number] = start

    def _take_end(self, end: engine.OutputEnd, output: Output) -> None:
        assert output.end is None, "an output ends once"
        assert end.num_tokens == len(output.tokens)
        output.end = end
        if self.confirms_ends:
            self.finish(
                end.number, end.num_tokens, reason=end.reason, output_index=end.output_index
            )


def make_submit(number: int, prompt: list[int], **fields: object) -> engine.Submit:
    """A Submit with defaults."""
    submit = engine.Submit(
        number=number,
        request_id=f"request-{number}",
        blob=b"blob",
        body_digest=b"body",
        prompt_tokens=np.array(prompt, "<i4").tobytes(),
        num_outputs=1,
        max_tokens=8,
        sampling=engine.RequestSampling(top_p=1.0, seed=1),
    )
    submit.MergeFrom(engine.Submit(**fields))  # type: ignore[arg-type]  # fields by name
    return submit


def resumed(tokens: list[int]) -> engine.ResumedSequence:
    """An output that goes on from these tokens."""
    return engine.ResumedSequence(tokens=np.array(tokens, "<i4").tobytes())


def ints(column: bytes) -> list[int]:
    """A column's values."""
    values: list[int] = np.frombuffer(column, "<i4").tolist()
    return values
