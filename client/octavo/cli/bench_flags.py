"""The flags that say which load `octavo bench` makes. Makes none."""

from __future__ import annotations

import argparse

OBJECTIVES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}
"""Names that --goodput takes, with the fields of Objectives."""
_MAX_COUNT = 1_000_000


def add_load_flags(load: argparse._ArgumentGroup) -> None:
    """Adds them to a group."""
    pace = load.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=_positive, metavar="R", help="requests a second (open loop)")
    pace.add_argument(
        "--clients", type=_count, default=8, metavar="N", help="closed loop (default: %(default)s)"
    )
    load.add_argument(
        "--count", type=_count, default=100, metavar="N", help="requests (default: %(default)s)"
    )
    load.add_argument(
        "--workload",
        choices=["nano", "fixed"],
        default="nano",
        help="nano: prompts and outputs of 100 to 1,024 tokens, temperature 0.6; fixed: all alike,"
        " greedy (default: %(default)s)",
    )
    load.add_argument("--prompt-tokens", type=_count, default=128, metavar="N", help="of fixed")
    load.add_argument("--output-tokens", type=_count, default=128, metavar="N", help="of fixed")
    load.add_argument(
        "--warm-up", type=_natural, default=4, metavar="N", help="requests before, not counted"
    )
    load.add_argument("--seed", type=_natural, default=0, help="of lengths, prompts and times")
    load.add_argument(
        "--processes", type=_count, default=1, metavar="N", help="that send; more for fast services"
    )
    load.add_argument(
        "--timeout", type=_positive, default=600.0, metavar="SECONDS", help="of each request"
    )
    load.add_argument(
        "--wait", type=_natural, default=0, metavar="SECONDS", help="for the service to be there"
    )
    load.add_argument(
        "--goodput",
        nargs="+",
        type=_objective,
        default=[],
        metavar="TIME:MS",
        help="objectives of a good request, in milliseconds: ttft (first token), tpot (per output"
        " token after it), e2el (whole request)",
    )


def _count(text: str) -> int:
    return _integer(text, least=1)


def _natural(text: str) -> int:
    return _integer(text, least=0)


def _integer(text: str, *, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= _MAX_COUNT:
        raise argparse.ArgumentTypeError(f"must be {least} to {_MAX_COUNT}, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e6:  # written so that NaN fails too
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1000000, got {text!r}")
    return number


def _objective(text: str) -> tuple[str, float]:
    """A field of Objectives, and seconds."""
    name, _, limit = text.partition(":")
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise argparse.ArgumentTypeError(f"must be TIME:MS with one of {known}, got {text!r}")
    return OBJECTIVES[name], _positive(limit) / 1e3
