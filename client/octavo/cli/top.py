"""`octavo top`: the flags and the connection. Knows nothing of how a replica looks."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from importlib.util import find_spec

from octavo.channel import client_settings, open_channel
from octavo.cli.service_flags import add_service_flags, api_key_from, credentials_from
from octavo.errors import MissingExtra, OctavoError
from octavo.v1.admin_pb2_grpc import AdminServiceStub

DEFAULT_ADMIN_TARGET = "127.0.0.1:50052"
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
        description="Shows one replica's speed, queue, memory, requests and processes, through its"
        " admin port.",
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


def _run(arguments: argparse.Namespace) -> int:
    if not find_spec("rich"):
        raise MissingExtra("octavo top needs the package rich: pip install rich")
    if not arguments.once and not sys.stdout.isatty():
        raise OctavoError("octavo top draws on a terminal; --once prints one frame anywhere")
    # rich is an optional package
    from octavo.cli.top_screen import Replica, print_once, watch  # noqa: PLC0415

    settings = client_settings(
        arguments.target,
        credentials=credentials_from(arguments),
        api_key=api_key_from(arguments),
    )
    with open_channel(settings, settings.targets[0]) as channel:
        replica = Replica(AdminServiceStub(channel), settings)
        if arguments.once:
            print_once(replica)
        else:
            # Ctrl-C is how everybody leaves
            with suppress(KeyboardInterrupt):
                watch(replica, interval_s=arguments.interval)
    return 0
