"""`octavo bench`: puts a service under load and says how it did. Knows no statistics."""

from __future__ import annotations

import argparse
import datetime as dt
import time
from importlib.util import find_spec
from pathlib import Path

from octavo.bench.report import html_report
from octavo.bench.result import Result
from octavo.bench.sender import Access, describe, send
from octavo.bench.summary import Objectives, summarize
from octavo.bench.workload import Request, arriving, fixed, nano
from octavo.channel import DEFAULT_TARGET, checked_target
from octavo.cli.answer import note
from octavo.cli.bench_flags import OBJECTIVES, add_load_flags
from octavo.cli.service_flags import add_service_flags, api_key_from, tls_files_from
from octavo.errors import MissingExtra, OctavoError, Unavailable
from octavo.v1 import inference_pb2 as api

_LOOK_INTERVAL_S = 1.0
_EPILOG = """\
--rate sends each request at its own random time, whatever became of those before (open loop): what
many independent users do. --clients keeps so many requests open (closed loop): a slow service then
gets fewer requests, and looks better than it is. Prompts are random tokens, so that the prefix
cache has no part in the numbers.

examples:
  octavo bench                                                 8 clients, 100 requests
  octavo bench --rate 4 --count 400 --report load.html         open loop, with a page to look at
  octavo bench --rate 4 --goodput ttft:500 tpot:50             how many requests a second are good
  octavo bench --workload fixed --prompt-tokens 128 --output-tokens 64 --clients 32 --json load.json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "bench",
        help="put a service under load and measure it",
        description="Sends requests to a running service and reports times, throughput and errors.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_service_flags(parser, variable="OCTAVO_TARGET", default=DEFAULT_TARGET)
    add_load_flags(parser.add_argument_group("load"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    output.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="write pictures here (needs matplotlib)"
    )
    output.add_argument(
        "--report", type=Path, metavar="FILE", help="write one HTML page here (needs matplotlib)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if (arguments.plots or arguments.report) and not find_spec("matplotlib"):
        raise MissingExtra("--plots and --report need matplotlib: pip install 'octavo[bench]'")
    access = _access(arguments)
    info = _described(access, wait_s=arguments.wait)
    began = dt.datetime.now(dt.UTC)
    result = _measured(arguments, access, info, began)
    print(result.as_text())
    _write(result, arguments)
    return 0 if result.summary.num_completed else 1


def _described(access: Access, *, wait_s: float) -> api.GetModelInfoResponse:
    """What is served; asks again until the service answers, for so long. Raises ServiceError."""
    ends_at = time.monotonic() + wait_s
    while True:
        try:
            return describe(access)
        except Unavailable:
            if time.monotonic() >= ends_at:
                raise
        time.sleep(_LOOK_INTERVAL_S)


def _measured(
    arguments: argparse.Namespace,
    access: Access,
    info: api.GetModelInfoResponse,
    began: dt.datetime,
) -> Result:
    vocab = info.num_tokenizer_ids or info.vocab_size
    requests = _requests(arguments, arguments.count, vocab, seed=arguments.seed)
    _check_lengths(requests, info)
    if arguments.rate:
        requests = arriving(requests, rate=arguments.rate, seed=arguments.seed)
    if arguments.warm_up:
        warm_up = _requests(arguments, arguments.warm_up, vocab, seed=arguments.seed + 1)
        send(access, warm_up, num_clients=len(warm_up), timeout_s=arguments.timeout)
    note(f"Sending {len(requests)} requests to {info.model} at {access.target}")
    outcomes = send(
        access,
        requests,
        num_clients=0 if arguments.rate else arguments.clients,
        num_processes=arguments.processes,
        timeout_s=arguments.timeout,
    )
    objectives = Objectives(**dict(arguments.goodput))
    return Result(
        setup=_setup(arguments, info, began),
        summary=summarize(outcomes, objectives=objectives),
        outcomes=outcomes,
    )


def _check_lengths(requests: list[Request], info: api.GetModelInfoResponse) -> None:
    longest = max(len(one.prompt) + one.num_tokens for one in requests)
    if longest > info.max_sequence_tokens:
        raise OctavoError(
            f"the longest request has {longest} tokens, {info.model} takes"
            f" {info.max_sequence_tokens}: use --workload fixed with shorter ones"
        )


def _requests(arguments: argparse.Namespace, count: int, vocab: int, *, seed: int) -> list[Request]:
    if arguments.workload == "nano":
        return nano(count, vocab=vocab, seed=seed)
    return fixed(
        count,
        num_prompt=arguments.prompt_tokens,
        num_output=arguments.output_tokens,
        vocab=vocab,
        seed=seed,
    )


def _setup(
    arguments: argparse.Namespace, info: api.GetModelInfoResponse, began: dt.datetime
) -> dict[str, str | int | float]:
    setup: dict[str, str | int | float] = {
        "model": info.model,
        "target": arguments.target,
        "replica": info.replica,
        "version": info.version,
        "began": began.isoformat(timespec="seconds"),
        "workload": arguments.workload,
        "count": arguments.count,
        "seed": arguments.seed,
        "processes": arguments.processes,
        "warm-up": arguments.warm_up,
    }
    setup |= {"rate": arguments.rate} if arguments.rate else {"clients": arguments.clients}
    if arguments.workload == "fixed":
        setup["prompt-tokens"] = arguments.prompt_tokens
        setup["output-tokens"] = arguments.output_tokens
    names = {field: name for name, field in OBJECTIVES.items()}
    goals = (f"{names[field]}:{1e3 * limit_s:g}" for field, limit_s in arguments.goodput)
    if arguments.goodput:
        setup["goodput"] = " ".join(goals)
    return setup


def _write(result: Result, arguments: argparse.Namespace) -> None:
    try:
        if arguments.json:
            arguments.json.write_text(result.as_json() + "\n", encoding="utf-8")
        if arguments.plots or arguments.report:
            _draw(result, plots=arguments.plots, report=arguments.report)
    except OSError as error:
        raise OctavoError(f"{error.filename}: {error.strerror}") from error


def _draw(result: Result, *, plots: Path | None, report: Path | None) -> None:
    # an optional package
    from octavo.bench.plots import pictures  # noqa: PLC0415

    made = pictures(result.outcomes)
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        for name, png in made.items():
            (plots / f"{name}.png").write_bytes(png)
    if report is not None:
        report.write_text(html_report(result, made), encoding="utf-8")


def _access(arguments: argparse.Namespace) -> Access:
    target = checked_target(arguments.target)
    key = api_key_from(arguments)
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    files = tls_files_from(arguments)
    if files is None:
        return Access(target=target, metadata=metadata)
    return Access(
        target=target,
        metadata=metadata,
        is_tls=True,
        tls_ca=files.ca,
        tls_cert=files.certificate,
        tls_key=files.key,
    )
