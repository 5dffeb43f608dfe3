"""`octavo top`: what one replica does, drawn anew each second. Knows nothing of how it looks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec

import grpc

from octavo.channel import ClientSettings, client_settings, open_channel
from octavo.cli.service_flags import add_service_flags, api_key_from, credentials_from
from octavo.errors import MissingExtra, OctavoError, ServiceError
from octavo.failures import service_error
from octavo.v1 import admin_pb2 as admin
from octavo.v1.admin_pb2_grpc import AdminServiceStub

DEFAULT_ADMIN_TARGET = "127.0.0.1:50052"
_ANSWER_LIMIT_S = 5.0
_EPILOG = """\
Ctrl-C ends it. A replica that stops answering is shown as such until it is back.

examples:
  octavo top                                  the replica on this machine
  octavo top --target 10.0.0.1:50052          the admin port of another one
  octavo top --once | less                    one look, for scripts
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "top",
        help="watch what a replica does",
        description="Shows one replica's queue, memory and processes, through its admin port.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_service_flags(parser, variable="OCTAVO_ADMIN_TARGET", default=DEFAULT_ADMIN_TARGET)
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between two looks (default: %(default)g)",
    )
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"must be 0.1 to 3600, got {text}")
    return seconds


@dataclass(slots=True)
class Replica:
    """One replica's admin port."""

    stub: AdminServiceStub
    settings: ClientSettings

    def look(self) -> admin.GetStateResponse:
        """What it does now. Raises ServiceError."""
        try:
            state: admin.GetStateResponse = self.stub.GetState(
                admin.GetStateRequest(), timeout=_ANSWER_LIMIT_S, metadata=self.settings.metadata
            )
        except grpc.RpcError as error:
            raise service_error(error, target=self.settings.targets[0]) from error
        return state


def _run(arguments: argparse.Namespace) -> int:
    if not find_spec("rich"):
        raise MissingExtra("octavo top needs the package rich: pip install rich")
    if not arguments.once and not sys.stdout.isatty():
        raise OctavoError("octavo top draws on a terminal; --once prints one frame anywhere")
    with _connected(arguments) as replica:
        if arguments.once:
            _print_once(replica)
        else:
            # Ctrl-C is how everybody leaves
            with suppress(KeyboardInterrupt):
                _watch(replica, interval_s=arguments.interval)
    return 0


@contextmanager
def _connected(arguments: argparse.Namespace) -> Iterator[Replica]:
    settings = client_settings(
        arguments.target,
        credentials=credentials_from(arguments),
        api_key=api_key_from(arguments),
    )
    with open_channel(settings, settings.targets[0]) as channel:
        yield Replica(AdminServiceStub(channel), settings)


def _print_once(replica: Replica) -> None:
    # an optional package
    from octavo.cli.top_view import Frame, console, draw  # noqa: PLC0415

    console().print(draw(Frame(replica.look())))


def _watch(replica: Replica, *, interval_s: float) -> None:
    # an optional package
    from octavo.cli.top_view import Frame, draw, live  # noqa: PLC0415

    frame = Frame(replica.look(), looked_at=time.monotonic())
    with live() as screen:
        while True:
            screen.update(draw(frame), refresh=True)
            time.sleep(interval_s)
            try:
                state = replica.look()
            except ServiceError as error:
                frame = frame.without_answer(str(error))
            else:
                frame = frame.followed_by(state, now=time.monotonic())
