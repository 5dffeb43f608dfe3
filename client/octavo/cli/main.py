"""The `octavo` command: finds the subcommand and turns every error into one message and a status.

Statuses: 0 done, 1 it did not work, 2 used wrongly, 130 Ctrl-C, 141 nobody reads the output.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from octavo.cli import bench, chat, demo, generate, keys, models, serve, top, version
from octavo.errors import (
    InvalidRequest,
    InvalidTarget,
    LocalServiceFailed,
    OctavoError,
    Unavailable,
)
from octavo.models.errors import ModelError

_COMMANDS = (serve, chat, generate, models, top, bench, keys, demo, version)

_EPILOG = """\
examples:
  octavo demo                                one answer from the default model, start to end
  octavo serve                               serve the default model on 127.0.0.1:50051
  octavo serve --model Qwen/Qwen3-0.6B       serve a model of the Hugging Face cache
  octavo chat                                talk to the service
  octavo generate "Once upon a time"         continue a text
  octavo top                                 watch what a replica does
  octavo bench                               put a service under load

`octavo COMMAND --help` explains each command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    try:
        parsed = command_parser().parse_args(arguments)
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read the output has gone; nor may the interpreter's last flush complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except (OctavoError, ModelError) as error:
        return _explain(error)
    return status


def command_parser() -> argparse.ArgumentParser:
    """The command's flags, and those of all its subcommands."""
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Large language models over gRPC.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version.text())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _explain(error: Exception) -> int:
    sys.stderr.write(f"octavo: {error}\n")
    if isinstance(error, Unavailable):
        sys.stderr.write("Is a service running there? `octavo serve` starts one.\n")
    if isinstance(error, LocalServiceFailed):
        sys.stderr.write("`octavo serve --log-level debug` with the same model shows all of it.\n")
    return 2 if isinstance(error, InvalidTarget | InvalidRequest) else 1


if __name__ == "__main__":
    sys.exit(main())
