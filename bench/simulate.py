"""Simulates replicas and clients: the real core under simulated time.

    python -m bench.simulate run --model 8b --trace poisson --rate 12
    python -m bench.simulate long-prompt --vary target_token_time_s=0.1,0.008 --plots pictures

Prints a table. The recorded runs, and what follows from them, are in
`docs/decisions/0002-scheduling-defaults.md`.
"""

import argparse
import sys

from bench.simulator import runs
from bench.simulator.options import (
    BadOption,
    add_output_flags,
    add_setup_flags,
    add_trace_flags,
    add_vary_flag,
)
from bench.simulator.plots import draw
from bench.simulator.shown import Shown
from bench.simulator.table import as_text, write_json
from bench.simulator.trace_file import BadTrace


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with a usage message on unknown flags."""
    parser = argparse.ArgumentParser(prog="simulate", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="RUN")

    def add(name: str, run: runs.Run, *, replicas: int = 1) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        add_output_flags(command)
        add_setup_flags(command, replicas=replicas)
        return command

    play = add("run", runs.play)
    add_trace_flags(play, trace="poisson", rate=12.0, seconds=60.0, warm_up=0.0)
    long_prompt = add("long-prompt", runs.compare_long_prompt)
    long_prompt.add_argument("--streams", type=int, default=16, metavar="N")
    long_prompt.add_argument("--prompt-tokens", type=int, default=30_000, metavar="N")
    add_vary_flag(long_prompt)
    tenants = add("two-tenants", runs.compare_tenants)
    tenants.add_argument("--flood-rate", type=float, default=60.0, help="requests a second")
    tenants.add_argument("--steady-rate", type=float, default=15.0, help="requests a second")
    tenants.add_argument("--seconds", type=float, default=60.0)
    for name, run in (("routing", runs.compare_routers), ("fidelity", runs.compare_kinds)):
        command = add(name, run, replicas=64)
        add_trace_flags(command, trace="chat", rate=100.0, seconds=30.0, warm_up=15.0)
    sweep = add("sweep", runs.sweep)
    sweep.add_argument("what", choices=sorted(runs.SWEEPS))
    add_vary_flag(sweep)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Runs what the arguments say; returns the exit code."""
    options = parse(arguments)
    try:
        shown: Shown = options.run(options)
    except (BadOption, BadTrace, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    print(as_text(shown.rows))
    if options.json is not None:
        write_json(shown.rows, options.json)
    if options.plots is not None:
        for drawing in shown.drawings:
            print(*draw(drawing, options.plots), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
