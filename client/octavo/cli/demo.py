"""`octavo demo`: from nothing to one streamed answer, and back to nothing."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from octavo.cli.answer import Stopwatch, note, print_answer, print_facts
from octavo.client import Client
from octavo.models.resolve import DEFAULT_MODEL
from octavo.obtain import obtain_model
from octavo.progress_display import display_progress
from octavo.service_packages import require_service_packages
from octavo.spawn import LocalService

_DEFAULT_PROMPT = "Explain in one sentence what a printing press does."

_EPILOG = """\
examples:
  octavo demo
  octavo demo "What is the capital of France?"
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="start a service, stream one answer, stop it",
        description="Obtains the model, starts a private service, streams one answer to PROMPT"
        " through gRPC, and stops everything.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", default=_DEFAULT_PROMPT)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="folder or name of a model (default: %(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=256, help="most tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--start-limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the service may take to start (default: %(default)g)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    require_service_packages("octavo demo", has_local_workers=True)
    with _sigterm_as_exit():
        model = obtain_model(arguments.model)
        note(f"Model: {model.name} ({model.path})")
        service = LocalService(["--model", str(model.path), "--served-model-name", model.name])
        with service:
            with display_progress() as display:
                service.start(
                    limit_s=arguments.start_limit,
                    on_progress=lambda line: display.line("Starting the service", line),
                )
            note(f"You: {arguments.prompt}")
            _answer(service, arguments)
    return 0


def _answer(service: LocalService, arguments: argparse.Namespace) -> None:
    with Client(service.target) as client:
        watch = Stopwatch()
        stream = client.stream(
            messages=arguments.prompt, temperature=0.0, max_tokens=arguments.max_tokens
        )
        print_facts(print_answer(stream, watch=watch), watch=watch, is_greedy=True)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Lets SIGTERM end the block like an exception does, so that the service is stopped."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    former = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
