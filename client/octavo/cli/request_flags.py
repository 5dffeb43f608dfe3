"""The flags that chat and generate share: which service, how tokens are chosen, when to stop."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.channel import DEFAULT_TARGET
from octavo.cli.service_flags import add_service_flags, api_key_from, credentials_from
from octavo.client import Client
from octavo.errors import invalid_field
from octavo.sampling import SamplingParams
from octavo.structured import StructuredOutput


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them, in groups."""
    service = add_service_flags(parser, variable="OCTAVO_TARGET", default=DEFAULT_TARGET)
    service.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="give up after this long (default: never)"
    )
    sampling = parser.add_argument_group("sampling (defaults: the model's own)")
    sampling.add_argument("--temperature", type=float, help="0 is greedy")
    sampling.add_argument("--top-k", type=int, help="keep the k most likely tokens; 0 is off")
    sampling.add_argument("--top-p", type=float, help="keep the likeliest tokens up to this sum")
    sampling.add_argument("--min-p", type=float, help="drop tokens below this share of the best")
    for name in ("repetition", "frequency", "presence"):
        help_text = f"the {name} penalty: discourages what was there before"
        sampling.add_argument(f"--{name}-penalty", type=float, help=help_text)
    sampling.add_argument("--seed", type=int, help="repeat an answer: its seed is shown with it")
    form = parser.add_argument_group("form of the answer").add_mutually_exclusive_group()
    form.add_argument("--json-schema", type=Path, metavar="FILE", help="JSON of this JSON Schema")
    form.add_argument("--regex", metavar="REGEX", help="a text that this matches as a whole")
    stopping = parser.add_argument_group("stopping")
    stopping.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    stopping.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end at this text; repeatable"
    )


def client_from(arguments: argparse.Namespace) -> Client:
    """A client of the chosen service."""
    return Client(
        arguments.target,
        timeout=arguments.timeout,
        api_key=api_key_from(arguments),
        credentials=credentials_from(arguments),
    )


def form_from(arguments: argparse.Namespace) -> StructuredOutput | None:
    """The chosen form of the answer. Raises InvalidRequest for a file that cannot be read."""
    if arguments.regex is not None:
        return StructuredOutput(regex=arguments.regex)
    if arguments.json_schema is None:
        return None
    try:
        return StructuredOutput(json_schema=arguments.json_schema.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise invalid_field("--json-schema", f"cannot be read: {error}") from error


def params_from(arguments: argparse.Namespace) -> SamplingParams:
    """The chosen sampling and stopping."""
    return SamplingParams(
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        seed=arguments.seed,
        repetition_penalty=arguments.repetition_penalty,
        frequency_penalty=arguments.frequency_penalty,
        presence_penalty=arguments.presence_penalty,
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
    )
