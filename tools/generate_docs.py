"""Writes the pages of docs/ that are made from code, or with --check says which are out of date.

Knows where the tables are; knows nothing of what the settings mean.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from scheduler_svc.config import ServiceConfig, flag_name  # noqa: E402 - needs the path above

CONFIGURATION_HEAD = """# Configuration

Every setting of `octavo serve` (the same as `python -m scheduler_svc`), with its default. Made from
`scheduler_svc/config.py` by `make docs`. `python -m worker_svc` takes the settings of the groups
workers, memory and scheduling that concern a worker, by the same names. Durations are in seconds
unless the name says otherwise.
"""


def configuration_page() -> str:
    """The table of all settings, by group."""
    parts = [CONFIGURATION_HEAD]
    group = ""
    for setting in dataclasses.fields(ServiceConfig):
        if setting.metadata["group"] != group:
            group = setting.metadata["group"]
            parts.append(f"\n## {group.capitalize()}\n\n| flag | default | meaning |\n")
            parts.append("|---|---|---|\n")
        is_empty = setting.default == "" or setting.default is False
        default = "" if is_empty else f"`{setting.default}`"
        parts.append(
            f"| `{flag_name(setting)}` | {default} | {setting.metadata['help']}{_rule(setting)} |\n"
        )
    return "".join(parts)


def _rule(setting: "dataclasses.Field[object]") -> str:
    low, high = setting.metadata["at_least"], setting.metadata["at_most"]
    if setting.metadata["choices"]:
        return f" ({', '.join(setting.metadata['choices'])})"
    if low is not None and high is not None:
        return f" ({low:g} to {high:g})"
    return f" (at least {low:g})" if low is not None else ""


PAGES = {"docs/configuration.md": configuration_page}


def main() -> int:
    """Writes or checks every page; 1 when a check found a stale one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    is_check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.stderr.write(f"out of date, run `make docs`: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
