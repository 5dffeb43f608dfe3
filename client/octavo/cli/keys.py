"""`octavo keys`: makes API keys. What the service keeps of one is its hash. Reaches no service."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import secrets
import sys
from pathlib import Path

from octavo.cli.answer import note
from octavo.errors import OctavoError

_PREFIX = "octavo_"  # lets scanners of repositories and logs find keys
_NUM_RANDOM_BYTES = 32
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")

_EPILOG = """\
examples:
  octavo keys new --tenant acme >> keys.jsonl                    the key appears in the terminal
  octavo keys new --tenant acme --key-file acme.key >> keys.jsonl
  octavo serve --api-keys-file keys.jsonl
  octavo chat --api-key-file acme.key

The record goes to the standard output, the key to the standard error or into a file that only you
can read. Nobody can find the key again from its record. To take a key back, delete its line.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand and its own."""
    parser = commands.add_parser(
        "keys",
        help="make API keys",
        description="Makes API keys for a service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    new = actions.add_parser("new", help="print a new key and its record")
    new.add_argument(
        "--tenant", required=True, metavar="NAME", help="whose key: letters, digits, '.', '_', '-'"
    )
    new.add_argument("--key-file", type=Path, metavar="FILE", help="write the key to this new file")
    new.add_argument(
        "--max-requests", type=int, metavar="N", help="most live requests of the tenant at once"
    )
    new.add_argument(
        "--weight",
        type=float,
        metavar="W",
        help="of the tenant beside others: 2 is served twice as much as 1, the default, when all"
        " want more than there is; the same in all its records",
    )
    new.add_argument(
        "--priorities",
        type=int,
        nargs=2,
        metavar=("MOST", "LEAST"),
        help="most and least urgent priority, within -8 to 8; lower is more urgent",
    )
    new.set_defaults(run=_new)


def _new(arguments: argparse.Namespace) -> int:
    record = _record_fields(arguments)
    key = _PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)
    if arguments.key_file is None:
        note(key)
    else:
        _write_private(arguments.key_file, key)
    record["sha256"] = hashlib.sha256(key.encode()).hexdigest()
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


def _record_fields(arguments: argparse.Namespace) -> dict[str, object]:
    if not _TENANT.fullmatch(arguments.tenant):
        raise OctavoError("--tenant must be 1 to 64 characters of letters, digits, '.', '_', '-'")
    fields: dict[str, object] = {"tenant": arguments.tenant}
    if arguments.max_requests is not None:
        if not 0 <= arguments.max_requests < 2**31:
            raise OctavoError(f"--max-requests must be 0 to {2**31 - 1}")
        fields["max_requests"] = arguments.max_requests
    if arguments.weight is not None:
        if not 0.01 <= arguments.weight <= 100:
            raise OctavoError("--weight must be 0.01 to 100")
        fields["weight"] = arguments.weight
    if arguments.priorities is not None:
        most_urgent, least_urgent = arguments.priorities
        if not -8 <= most_urgent <= least_urgent <= 8:
            raise OctavoError("--priorities must be two numbers, the lower first, within -8 to 8")
        fields["priorities"] = [most_urgent, least_urgent]
    return fields


def _write_private(path: Path, key: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise OctavoError(f"--key-file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(key + "\n")
