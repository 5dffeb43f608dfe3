"""The command line's flags, and what they set up. Runs nothing."""

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bench.simulator import traces
from bench.simulator.cost import MODELS
from bench.simulator.experiment import REPLICA_KINDS, Setup
from bench.simulator.jobs import Conversation
from bench.simulator.router import ROUTERS
from bench.simulator.trace_file import read_trace
from scheduler_svc.core.limits import Policy


class BadOption(Exception):
    """An argument breaks its rule; the text names both."""


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Where results go beside the table."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw PNG and SVG there")


def add_setup_flags(parser: argparse.ArgumentParser, *, replicas: int) -> None:
    """What serves."""
    parser.add_argument("--model", choices=sorted(MODELS), default="8b")
    parser.add_argument("--replicas", type=int, default=replicas, metavar="N")
    parser.add_argument("--kind", choices=REPLICA_KINDS, default=REPLICA_KINDS[0])
    parser.add_argument("--router", choices=sorted(ROUTERS), default="round-robin")
    parser.add_argument("--max-num-seqs", type=int, default=256, metavar="N")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N")
    parser.add_argument("--num-blocks", type=int, default=0, metavar="N", help="0: what fits")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of scheduler_svc.core.limits.Policy; again for more",
    )


def add_vary_flag(parser: argparse.ArgumentParser) -> None:
    """What differs between the rows."""
    parser.add_argument(
        "--vary",
        metavar="NAME=VALUE,VALUE,...",
        help="a row for each value of max_num_batched_tokens or of a policy's field",
    )


def setup_of(options: argparse.Namespace) -> Setup:
    """The setup that the flags describe; raises BadOption."""
    for name in ("replicas", "max_num_seqs", "max_num_batched_tokens"):
        if getattr(options, name) < 1:
            raise BadOption(f"--{name.replace('_', '-')} must be at least 1")
    return Setup(
        shape=MODELS[options.model],
        kind=options.kind,
        num_replicas=options.replicas,
        router=options.router,
        policy=policy_of(options.policy),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_blocks=options.num_blocks,
    )


def policy_of(assignments: list[str]) -> Policy:
    """The default policy with changes such as `ageing_s=10`; raises BadOption."""
    policy = Policy()
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        policy = _with_policy(policy, name, text)
    return policy


def variants_of(base: Setup, vary: str) -> list[tuple[str, Setup]]:
    """A setup for each value of `NAME=VALUE,VALUE,...`, with its name; raises BadOption."""
    name, _, values = vary.partition("=")
    return [(f"{name}={value}", _with(base, name, value)) for value in values.split(",")]


def _with(setup: Setup, name: str, text: str) -> Setup:
    if name == "max_num_batched_tokens":
        return replace(setup, max_num_batched_tokens=int(_number(name, text)))
    return replace(setup, policy=_with_policy(setup.policy, name, text))


def _with_policy(policy: Policy, name: str, text: str) -> Policy:
    names = [field.name for field in fields(Policy)]
    if name not in names:
        raise BadOption(f"{name!r} is none of {', '.join(names)}")
    kind = type(getattr(policy, name))
    changes: dict[str, Any] = {name: kind(_number(name, text))}
    return replace(policy, **changes)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadOption(f"{name} must be a number, got {text!r}") from error


def add_trace_flags(
    parser: argparse.ArgumentParser, *, trace: str, rate: float, seconds: float, warm_up: float
) -> None:
    """What arrives."""
    parser.add_argument(
        "--trace",
        default=trace,
        metavar="NAME",
        help="poisson, bursts, chat, documents, batch, or a file written by --save-trace",
    )
    parser.add_argument("--rate", type=float, default=rate, help="arrivals a second")
    parser.add_argument("--seconds", type=float, default=seconds, help="of arrivals")
    parser.add_argument("--warm-up", type=float, default=warm_up, help="seconds not measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-trace", type=Path, metavar="FILE")


def trace_of(options: argparse.Namespace) -> list[Conversation]:
    """The trace that the flags describe; raises BadOption, BadTrace or OSError."""
    if not 0 <= options.seed <= traces.MAX_SEED:
        raise BadOption(f"--seed must be from 0 to {traces.MAX_SEED}")
    if options.rate <= 0 or options.seconds <= 0:
        raise BadOption("--rate and --seconds must be above 0")
    rate, seconds, seed = options.rate, options.seconds, options.seed
    match options.trace:
        case "poisson":
            return traces.poisson(rate=rate, seconds=seconds, seed=seed)
        case "bursts":
            return traces.bursts(rate=rate, burst=40, every_s=8.0, seconds=seconds, seed=seed)
        case "chat":
            return traces.chat(rate=rate, seconds=seconds, seed=seed)
        case "documents":
            return traces.documents(rate=rate, seconds=seconds, seed=seed)
        case "batch":
            return traces.batch(num_requests=256, seed=seed)
    try:
        return read_trace(Path(options.trace))
    except FileNotFoundError as error:
        rule = f"--trace must be a name or a file, {options.trace!r} is neither"
        raise BadOption(rule) from error
