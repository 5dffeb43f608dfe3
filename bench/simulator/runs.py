"""The runs that the command line offers: each plays something and says what there is to show."""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from bench.simulator import policies
from bench.simulator.experiment import CORE, FAST, Outcome, Setup, run
from bench.simulator.jobs import Conversation
from bench.simulator.long_prompt import ARRIVES_AT_S, long_prompt
from bench.simulator.options import setup_of, trace_of, variants_of
from bench.simulator.recorder import Recorder
from bench.simulator.router import ROUTERS
from bench.simulator.shown import BarsDrawing, GapsDrawing, LatencyDrawing, Shown
from bench.simulator.trace_file import write_trace
from bench.simulator.two_tenants import two_tenants

Run = Callable[[argparse.Namespace], Shown]

SWEEPS: dict[str, Callable[[Setup], policies.Figures]] = {
    "shared-steps": policies.shared_steps,
    "passing": policies.passing,
    "ageing": policies.ageing,
}


def play(options: argparse.Namespace) -> Shown:
    """One trace, one setup."""
    trace = trace_of(options)
    if options.save_trace is not None:
        write_trace(trace, options.save_trace)
    outcome, numbers = _measured(options, setup_of(options), trace)
    shown = Shown()
    shown.add(options.kind, numbers)
    shown.drawings.append(LatencyDrawing(name="latency", runs={options.kind: outcome.recorder}))
    return shown


def compare_long_prompt(options: argparse.Namespace) -> Shown:
    """Streams, then one long prompt, under each variant."""
    shown, gaps, last_s = Shown(), {}, ARRIVES_AT_S
    for name, setup in _variants(options):
        figures, outcome = long_prompt(
            setup, num_streams=options.streams, num_prompt_tokens=options.prompt_tokens
        )
        shown.add(name, asdict(figures) | {"p99_ratio": figures.p99_ratio})
        gaps[name] = outcome.recorder.gaps_at
        last_s = max(last_s, ARRIVES_AT_S + figures.prompt_ttft_ms / 1e3)
    drawing = GapsDrawing(
        name="long-prompt", runs=gaps, from_s=ARRIVES_AT_S - 0.3, until_s=last_s + 0.3
    )
    shown.drawings.append(drawing)
    return shown


def compare_tenants(options: argparse.Namespace) -> Shown:
    """Two equal tenants, one of which floods."""
    shown = Shown()
    figures, outcome = two_tenants(
        setup_of(options),
        flood_rate=options.flood_rate,
        steady_rate=options.steady_rate,
        seconds=options.seconds,
    )
    for tenant, each in figures.items():
        shown.add(tenant, asdict(each) | {"jain": outcome.summary.jain})
    return shown


def compare_routers(options: argparse.Namespace) -> Shown:
    """The same trace behind each router."""
    shown = Shown()
    recorders: dict[str, Recorder] = {}
    rates: dict[str, float] = {}
    trace = trace_of(options)
    for router in ROUTERS:
        setup = replace(setup_of(options), router=router)
        outcome, numbers = _measured(options, setup, trace)
        shown.add(router, numbers)
        recorders[router], rates[router] = outcome.recorder, outcome.summary.hit_rate
    label = "share of prompt tokens found in a cache"
    shown.drawings += [
        LatencyDrawing(name="routing-latency", runs=recorders),
        BarsDrawing(name="routing-hit-rate", label=label, values=rates),
    ]
    return shown


def compare_kinds(options: argparse.Namespace) -> Shown:
    """The same trace with the real core and with the fast replica."""
    shown, trace = Shown(), trace_of(options)
    recorders: dict[str, Recorder] = {}
    numbers: dict[str, dict[str, float]] = {}
    for kind in (CORE, FAST):
        setup = replace(setup_of(options), kind=kind)
        outcome, numbers[kind] = _measured(options, setup, trace)
        shown.add(kind, numbers[kind])
        recorders[kind] = outcome.recorder
    core, fast = numbers[CORE], numbers[FAST]
    off = {name: 100 * (fast[name] / core[name] - 1) if core[name] else 0.0 for name in core}
    shown.add("off by %", off)
    shown.drawings.append(LatencyDrawing(name="fidelity", runs=recorders))
    return shown


def sweep(options: argparse.Namespace) -> Shown:
    """One policy's values against each other."""
    shown = Shown()
    for name, setup in _variants(options):
        shown.add(name, SWEEPS[options.what](setup))
    return shown


def _variants(options: argparse.Namespace) -> Iterator[tuple[str, Setup]]:
    base = setup_of(options)
    yield from variants_of(base, options.vary) if options.vary else [("default", base)]


def _measured(
    options: argparse.Namespace, setup: Setup, trace: list[Conversation]
) -> tuple[Outcome, dict[str, float]]:
    # Arrivals of a batch are over at once: it is measured until all is done.
    until_s = math.inf if options.trace == "batch" else options.seconds
    began = time.perf_counter()
    outcome = run(setup, trace, measures_from_s=options.warm_up, measures_until_s=until_s)
    took_s = time.perf_counter() - began
    return outcome, outcome.summary.as_dict() | {"took_s": took_s}
