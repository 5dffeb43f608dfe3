"""`octavo chat`: one question, or a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec

from octavo.cli.answer import Stopwatch, note, print_answer, print_facts
from octavo.cli.request_flags import add_request_flags, client_from, form_from, params_from
from octavo.client import Client
from octavo.errors import ServiceError
from octavo.prompts import Message
from octavo.sampling import SamplingParams
from octavo.structured import StructuredOutput

_EPILOG = """\
examples:
  octavo chat                                          a conversation; Ctrl-D ends it
  octavo chat "What is the capital of France?"         one question
  octavo chat --system "Answer in rhymes." --temperature 0.7
  octavo chat < questions.txt                          a turn for each line

in a conversation:
  /reset forgets what was said, /exit ends, Ctrl-C stops an answer
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "chat",
        help="talk to a running service",
        description="Talks to a running service through its model's chat template.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("message", metavar="MESSAGE", nargs="?", help="ask this and end")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    add_request_flags(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with client_from(arguments) as client:
        conversation = Conversation(
            client,
            params=params_from(arguments),
            form=form_from(arguments),
            system=arguments.system,
        )
        if arguments.message is not None:
            conversation.ask(arguments.message)
            return 0
        return _talk(conversation, model=client.model_info().model)


class Conversation:
    """What was said so far."""

    def __init__(
        self,
        client: Client,
        *,
        params: SamplingParams,
        form: StructuredOutput | None,
        system: str | None,
    ) -> None:
        self._client = client
        self._params = params
        self._form = form
        self._opening = [Message("system", system)] if system else []
        self._messages = list(self._opening)

    def reset(self) -> None:
        """Forgets everything but what the model is told first."""
        self._messages = list(self._opening)

    def ask(self, text: str) -> None:
        """Prints the answer and remembers both; forgets the question if there is none."""
        messages = [*self._messages, Message("user", text)]
        watch = Stopwatch()
        stream = self._client.stream(
            messages=messages,
            params=self._params,
            structured_output=self._form,
            split_reasoning=True,
        )
        generation = print_answer(stream, watch=watch)
        print_facts(generation, watch=watch)
        answer = Message("assistant", generation.text, reasoning=generation.reasoning)
        self._messages = [*messages, answer]


def _talk(conversation: Conversation, *, model: str) -> int:
    """Reads questions until the end of the input; returns 1 if the last one could not be asked."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        _edit_lines()
        note(f"Talking to {model}. /exit or Ctrl-D ends, /reset starts over.")
    status = 0
    while (line := _next_line("> " if is_terminal else "")) is not None:
        match line.strip():
            case "":
                continue
            case "/exit" | "/quit":
                break
            case "/reset":
                conversation.reset()
            case text:
                status = _ask(conversation, text, is_terminal=is_terminal)
    return status


def _ask(conversation: Conversation, text: str, *, is_terminal: bool) -> int:
    try:
        conversation.ask(text)
    except KeyboardInterrupt:
        if not is_terminal:
            raise
        note("\n[stopped]")
    except ServiceError as error:
        if not is_terminal:
            raise
        note(f"octavo: {error}")
        return 1
    return 0


def _edit_lines() -> None:
    """Gives `input` arrow keys and a history, where Python was built with them."""
    if find_spec("readline"):
        import_module("readline")


def _next_line(prompt: str) -> str | None:
    """The next line of the input; None at its end."""
    try:
        return input(prompt)
    except EOFError:
        if prompt:
            sys.stderr.write("\n")
        return None
