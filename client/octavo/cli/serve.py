"""`octavo serve`: obtains the model with progress to look at, then becomes the service."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import NoReturn

from octavo.errors import MissingExtra
from octavo.models.resolve import DEFAULT_MODEL
from octavo.obtain import obtain_model
from octavo.service_packages import require_service_packages
from octavo.spawn import SERVICE_COMMAND

_HELP = f"""\
usage: octavo serve [--model DIR_OR_NAME] [flags of the service]

Serves a model over gRPC until SIGTERM or Ctrl-C, which let running answers finish first.

examples:
  octavo serve                                          the default model, {DEFAULT_MODEL}
  octavo serve --model ~/models/Qwen3-0.6B --port 8000
  octavo serve --model Qwen/Qwen3-0.6B --max-model-len 8192 --max-num-seqs 64

then, in another terminal:
  octavo chat
  curl http://127.0.0.1:9464/readyz

"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand. All its arguments go to the service; few are looked at here."""
    parser = commands.add_parser(
        "serve", help="serve a model over gRPC", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("flags", nargs=argparse.REMAINDER)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    flags: list[str] = arguments.flags
    known, _ = _known_flags().parse_known_args(flags)
    if known.help:
        return _print_help()
    require_service_packages("octavo serve", has_local_workers=known.workers != "external")
    model = obtain_model(known.model)
    own = ["--model", str(model.path)]
    if not known.served_model_name:
        own += ["--served-model-name", model.name]
    sys.stderr.flush()
    command = [*SERVICE_COMMAND, *flags, *own]
    return _become(command)


def _become(command: list[str]) -> NoReturn:
    os.execv(command[0], command)  # noqa: S606 - there is no shell, and none is wanted


def _known_flags() -> argparse.ArgumentParser:
    """Reads what matters before the service starts, abbreviated as the service takes it too."""
    parser = argparse.ArgumentParser(prog="octavo serve", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--served-model-name", default="")
    parser.add_argument("--workers", default="local")
    return parser


def _print_help() -> int:
    sys.stdout.write(_HELP)
    sys.stdout.flush()
    try:
        require_service_packages("octavo serve", has_local_workers=False)
    except MissingExtra as error:  # the service itself lists its flags
        print(error)
        return 0
    return subprocess.run([*SERVICE_COMMAND, "--help"], check=False).returncode
