"""`octavo generate`: continues a plain text, without a chat template."""

from __future__ import annotations

import argparse
import sys

from octavo.cli.answer import Stopwatch, print_answer, print_facts
from octavo.cli.request_flags import add_request_flags, client_from, form_from, params_from

_EPILOG = """\
examples:
  octavo generate "The printing press"
  octavo generate --temperature 0 --max-tokens 20 "1, 2, 3,"
  octavo generate - < story.txt
  octavo generate --regex "[0-9]{4}" "The printing press came to Europe in the year "
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "generate",
        help="continue a text",
        description="Streams the model's continuation of a plain text: no chat template, no roles.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin")
    add_request_flags(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    with client_from(arguments) as client:
        watch = Stopwatch()
        form = form_from(arguments)
        stream = client.stream(prompt, params=params_from(arguments), structured_output=form)
        print_facts(print_answer(stream, watch=watch), watch=watch)
    return 0
