"""`python -m tests.e2e.attacks KIND ...`: what somebody hostile sends; a process of its own.

Each attack sends so many pieces, then ends; it says how many on its last line. It expects refusals
of all kinds; what it gets that looks like success is a failure, but for forms that are no harm.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import zmq

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e import raw_http2
from tests.e2e.hostile_schemas import SCHEMAS

GENERATE = "/octavo.v1.InferenceService/Generate"
LOOP, ALLOCATE = "loop", "allocate"
TEMPLATE = (
    "{% if messages[0].content == 'loop' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% elif messages[0].content == 'allocate' %}"
    "{{ (messages[0].role * 10 ** 10) | length }}"
    "{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
"""A chat template with two bombs that a conversation sets off."""
SOCKETS = ("control.sock", "engine.sock", "steps.sock", "workers.sock")
_OPENED = 200
_FRAMES_OF_A_CONNECTION = 50
_TOKENS_OF_A_FORM = 32
_FORMS_AT_ONCE = 4


class NotRefused(Exception):
    """The service took what it must not take."""


@dataclass(frozen=True)
class Aim:
    """Whom to attack, how much, how fast."""

    target: str
    run_dir: Path
    count: int
    per_s: float

    @property
    def address(self) -> tuple[str, int]:
        """For raw connections."""
        host, _, port = self.target.rpartition(":")
        return host, int(port)

    def paced(self) -> Iterator[int]:
        """Counts, at the pace."""
        began_at = time.monotonic()
        for number in range(self.count):
            pause_s = began_at + number / self.per_s - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            yield number


def frames(aim: Aim) -> None:
    """Frames that make no sense, many on a connection until the service ends it."""
    draw = random.Random(1)
    connection: socket.socket | None = None
    for number in aim.paced():
        if connection is None or number % _FRAMES_OF_A_CONNECTION == 0:
            if connection is not None:
                connection.close()
            connection = raw_http2.connect(aim.address, greets=draw.random() < 0.9)
        try:
            connection.sendall(raw_http2.garbage(draw))
        except OSError:
            connection.close()
            connection = None


def half_open(aim: Aim) -> None:
    """Connections that say nothing, or no more than hello, and stay."""
    kept: list[socket.socket] = []
    for number in aim.paced():
        with suppress(OSError):
            kept.append(raw_http2.connect(aim.address, greets=number % 2 == 0))
        if len(kept) > _OPENED:
            kept.pop(0).close()


def slowloris(aim: Aim) -> None:
    """Calls whose message comes a byte at a time, and never whole."""
    beginning = raw_http2.frame(raw_http2.DATA, b"\x00\x00\x00\x40\x00", stream=1)
    kept: list[socket.socket] = []
    for number in aim.paced():
        if len(kept) < _OPENED:
            connection = raw_http2.connect(aim.address)
            connection.sendall(raw_http2.call_headers(GENERATE, stream=1) + beginning)
            kept.append(connection)
            continue
        with suppress(OSError):
            kept[number % _OPENED].sendall(raw_http2.frame(raw_http2.DATA, b"\x00", stream=1))


def giant(aim: Aim) -> None:
    """Prompts that are far too long, below and above the largest message."""
    with grpc.insecure_channel(aim.target) as channel:
        stub = InferenceServiceStub(channel)
        for number in aim.paced():
            kind = number % 3
            if kind == 0:
                prompt = api.Prompt(text="x" * (17 * 2**20))
            elif kind == 1:
                prompt = api.Prompt(text="all work and no play " * 700_000)
            else:
                prompt = api.Prompt(token_ids=api.TokenIds(ids=[1] * 4_000_000))
            _refused(stub, _one_token(prompt))


def bombs(aim: Aim) -> None:
    """Conversations that set off what is in the template."""
    with grpc.insecure_channel(aim.target) as channel:
        stub = InferenceServiceStub(channel)
        for number in aim.paced():
            message = api.ChatMessage(role="user", content=(LOOP, ALLOCATE)[number % 2])
            _refused(stub, _one_token(api.Prompt(chat=api.Chat(messages=[message]))))


def schemas(aim: Aim) -> None:
    """Forms that are nested too deeply, or cost as much as a form may; some at a time."""
    with grpc.insecure_channel(aim.target) as channel, ThreadPoolExecutor(_FORMS_AT_ONCE) as pool:
        stub = InferenceServiceStub(channel)
        running: deque[Future[None]] = deque()
        for number in aim.paced():
            running.append(pool.submit(_ask_form, stub, number))
            if len(running) >= _FORMS_AT_ONCE:
                running.popleft().result()
        for one in running:
            one.result()


def _ask_form(stub: InferenceServiceStub, number: int) -> None:
    make, is_served = SCHEMAS[number % len(SCHEMAS)]
    wanted = api.Generation(
        prompt=api.Prompt(text="An answer:"),
        sampling=api.SamplingParams(temperature=1.0),
        stopping=api.StoppingParams(max_tokens=_TOKENS_OF_A_FORM),
        structured_output=api.StructuredOutput(json_schema=make(number)),
    )
    if not is_served:
        _refused(stub, wanted)
        return
    try:
        stub.GenerateUnary(api.GenerateUnaryRequest(generation=wanted), timeout=120)
    except grpc.RpcError as error:
        if "structured_output: " not in (error.details() or ""):  # it may cost too much to go on
            raise


def ipc(aim: Aim) -> None:
    """Messages and bytes of nobody on the sockets between processes."""
    draw = random.Random(2)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for number in aim.paced():
        path = aim.run_dir / SOCKETS[number % len(SOCKETS)]
        if number % 10 == 0:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(path))
                raw.sendall(draw.randbytes(draw.randrange(1, 4096)))
            continue
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.LINGER, 200)
        peer.setsockopt(zmq.SNDTIMEO, 200)
        peer.connect(f"ipc://{path}")
        with suppress(zmq.Again):
            for _ in range(20):
                size = draw.choice((0, 1, 40, 4096, 2**20))
                peer.send_multipart([draw.randbytes(size)] * draw.choice((1, 1, 2, 5)))
        peer.close()
    context.term()


ATTACKS: dict[str, Callable[[Aim], None]] = {
    "frames": frames,
    "half-open": half_open,
    "slowloris": slowloris,
    "giant": giant,
    "bombs": bombs,
    "schemas": schemas,
    "ipc": ipc,
}


def _one_token(prompt: api.Prompt) -> api.Generation:
    return api.Generation(prompt=prompt, stopping=api.StoppingParams(max_tokens=1))


def _refused(stub: InferenceServiceStub, wanted: api.Generation) -> None:
    try:
        stub.GenerateUnary(api.GenerateUnaryRequest(generation=wanted), timeout=120)
    except grpc.RpcError as error:
        code = error.code()
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return
        raise NotRefused(f"{code}: {error}") from error
    raise NotRefused("it was answered")


def main() -> int:
    """Attacks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=ATTACKS)
    parser.add_argument("--target", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--per-s", type=float, default=1e9)
    arguments = parser.parse_args()
    os.nice(10)  # the attacker's own machine is not the one under test
    aim = Aim(arguments.target, arguments.run_dir, arguments.count, arguments.per_s)
    ATTACKS[arguments.kind](aim)
    return 0


if __name__ == "__main__":
    sys.exit(main())
