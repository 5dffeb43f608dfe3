"""`octavo top` over a scripted admin port, and what its frames say."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console

from octavo.cli import top
from octavo.cli.main import main
from octavo.cli.top_view import Frame, draw
from octavo.v1 import admin_pb2 as admin

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 30.0


def state(*, num_steps: int = 100, epoch: int = 2, **changes: Any) -> admin.GetStateResponse:
    """A replica at work."""
    made = admin.GetStateResponse(
        replica="replica-1",
        model="tiny",
        version="1.2.3",
        is_ready=True,
        processes=[
            admin.ProcessState(role="core", name="core", pid=41, is_up=True, num_restarts=3),
            admin.ProcessState(role="worker", name="rank-0"),
        ],
        core=admin.CoreState(
            num_running=5,
            num_waiting=7,
            num_waiting_tokens=900,
            num_blocks_in_use=50,
            num_blocks_cached=25,
            num_blocks_fenced=0,
            num_blocks_free=25,
            block_size=16,
            num_steps=num_steps,
            epoch=epoch,
        ),
    )
    made.MergeFrom(admin.GetStateResponse(**changes))
    return made


def text_of(frame: Frame) -> str:
    """What a terminal without colours shows."""
    out = io.StringIO()
    Console(file=out, width=100, highlight=False).print(draw(frame))
    return out.getvalue()


class AdminPort:
    """Answers GetState, and nothing else, with states in turn, the last one for ever."""

    def __init__(self) -> None:
        self.states = [state()]
        self.num_asked = 0
        self.metadata: dict[str, str | bytes] = {}

    def get_state(self, request: Any, context: Any) -> admin.GetStateResponse:
        self.num_asked += 1
        self.metadata = dict(context.invocation_metadata())
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@contextmanager
def listening(port: AdminPort) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        port.get_state,
        request_deserializer=admin.GetStateRequest.FromString,
        response_serializer=admin.GetStateResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler("octavo.v1.AdminService", {"GetState": handler})
    server.add_generic_rpc_handlers((service,))
    number = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{number}"
    finally:
        server.stop(None).wait()


def test_one_frame_says_what_the_replica_does(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(AdminPort()) as target:
        assert main(["top", "--once", "--target", target]) == 0
    out = capsys.readouterr().out
    assert "octavo 1.2.3  replica-1  tiny  ready" in out
    assert "7 sequences, 900 tokens" in out
    assert f"[{'#' * 20}{'+' * 10}{'.' * 10}] 100 of 16 tokens" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["core", "41", "up", "3"] in lines
    assert ["rank-0", "-", "down", "0"] in lines
    assert "\x1b" not in out  # no colours where nobody sees them


def test_the_admin_ports_key_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    port = AdminPort()
    monkeypatch.setenv("OCTAVO_API_KEY", "k")
    with listening(port) as target:
        monkeypatch.setenv("OCTAVO_ADMIN_TARGET", target)
        assert main(["top", "--once"]) == 0
    assert port.metadata["authorization"] == "Bearer k"


def test_nobody_there_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(AdminPort()) as target:
        pass
    assert main(["top", "--once", "--target", target]) == 1
    assert target in capsys.readouterr().err


def test_a_pipe_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 1
    assert "--once prints one frame" in capsys.readouterr().err


def test_without_rich_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "find_spec", lambda _: None)
    assert main(["top", "--once"]) == 1
    assert "pip install rich" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "x", "1e9"])
def test_an_interval_out_of_range_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top", "--interval", text])
    assert caught.value.code == 2
    assert "must be 0.1 to 3600" in capsys.readouterr().err


def test_the_rate_is_that_between_two_looks_of_one_epoch() -> None:
    first = Frame(state(num_steps=100), looked_at=10.0)
    assert "a second" not in text_of(first)
    second = first.followed_by(state(num_steps=150), now=12.0)
    assert "150 in epoch 2, 25.0 a second" in text_of(second)
    anew = second.followed_by(state(num_steps=7, epoch=3), now=13.0)
    assert "a second" not in text_of(anew)


def test_a_look_in_vain_keeps_the_last_one_and_says_so() -> None:
    frame = Frame(state(), looked_at=10.0).without_answer("connection refused")
    assert "no answer, this is the last: connection refused" in text_of(frame)
    assert "900 tokens" in text_of(frame)


def test_speed_and_times_are_those_of_the_last_seconds() -> None:
    traffic = admin.RecentTraffic(
        window_s=15.2,
        generated_tokens_per_s=1234.5,
        prompt_tokens_per_s=99.0,
        requests_per_s=2.5,
        time_to_first_token=admin.RecentTimes(count=38, p50_s=0.0125, p99_s=0.25),
    )
    lines = [" ".join(line.split()) for line in text_of(Frame(state(traffic=traffic))).splitlines()]
    assert "speed 1234.5 tokens/s out, 99.0 in, 2.5 requests/s, over 15 s" in lines
    assert "first token p50 12.5 ms, p99 250.0 ms" in lines
    assert "between tokens -" in lines  # nothing was measured: no zeros that look fast
    assert "speed" not in text_of(Frame(state()))  # a service of an earlier version


def listing(*held: tuple[str, list[int]], next_after: int = 0) -> admin.ListRequestsResponse:
    """Requests of one output each, and the blocks they hold; one without any waits for blocks."""
    return admin.ListRequestsResponse(
        requests=[
            admin.RequestState(
                tenant="acme",
                request_id=name,
                age_s=1.5,
                prompt_tokens=70,
                cached_tokens=32,
                outputs=[
                    admin.OutputState(
                        phase=admin.OUTPUT_PHASE_DECODE if blocks else admin.OUTPUT_PHASE_WAITING,
                        wait_reason=admin.WAIT_REASON_UNSPECIFIED
                        if blocks
                        else admin.WAIT_REASON_BLOCKS,
                        num_tokens=9,
                        num_blocks=len(blocks),
                        block_ids=blocks,
                    )
                ],
            )
            for name, blocks in held
        ],
        num_live_requests=len(held),
        next_after=next_after,
    )


def test_requests_are_listed_with_what_they_do_and_why_not() -> None:
    said = text_of(Frame(state(), listing(("first", [1, 2]), ("second", []))))
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "first acme 1.5 s decode 70 32 9 2" in lines
    assert "second acme 1.5 s waits: blocks 70 32 9 0" in lines
    assert "no request lives" in text_of(Frame(state(), listing()))


def test_the_map_marks_each_block_that_is_held() -> None:
    """100 blocks, numbered from 1; two requests share one."""
    said = text_of(Frame(state(), listing(("a", [1, 2, 65]), ("b", [2, 100]))))
    rows = said[said.index("KV map") :].splitlines()[1:4]
    assert rows[0].rstrip() == "##" + "." * 62
    assert rows[1].rstrip() == "#" + "." * 34 + "#"
    assert rows[2].startswith("each mark is a block")


def test_a_large_cache_is_drawn_in_groups_of_blocks() -> None:
    large = state()
    large.core.num_blocks_free = 5120 - 75  # ten blocks a mark
    said = text_of(Frame(large, listing(("a", [*range(1, 11), *range(11, 16), 21]), next_after=7)))
    assert "#=-" + "." * 61 in said
    assert "each mark is 10 blocks" in said
    assert "more holders than can be shown" in said


def test_states_other_than_ready_stand_out() -> None:
    assert "draining" in text_of(Frame(state(is_draining=True)))
    starting = state(not_ready_reason="rank 0 loads")
    starting.is_ready = False
    starting.core.Clear()
    assert "not ready: rank 0 loads" in text_of(Frame(starting))
    assert "KV blocks: none" in text_of(Frame(starting))


def test_what_a_service_says_cannot_move_the_cursor() -> None:
    said = text_of(Frame(state(replica="evil\x1b[2J[bold]\n")))
    assert "evil?[2J[bold]?" in said


def test_a_terminal_is_drawn_anew_until_ctrl_c_which_is_quiet() -> None:
    port = AdminPort()
    port.states = [state(num_steps=number) for number in (1, 2, 3)]
    with listening(port) as target:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "octavo.cli.main", "top", "--target", target]
        process = subprocess.Popen(
            [*command, "--interval", "0.1"],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "TERM": "xterm"},
        )
        os.close(theirs)
        end = time.monotonic() + LIMIT_S
        said = b""
        while b"3 in epoch 2" not in said and time.monotonic() < end:
            said += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        os.close(ours)
    assert b"3 in epoch 2" in said
    assert (process.returncode, errors) == (0, b"")
    assert port.num_asked >= 3
