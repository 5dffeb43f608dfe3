"""Records of API keys: a key's hash, and what its holder may do. Knows no key and no call.

A file has one JSON object a line, as `octavo keys new` prints them; empty lines and lines that
begin with # are passed over. An error repeats nothing of a file: somebody may have put a key in.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

DEFAULT_TENANT = "default"
"""Everybody's tenant where no keys are asked for."""
MOST_URGENT, LEAST_URGENT = -8, 8
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_REQUESTS = 2**31 - 1
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 100


class InvalidRecords(Exception):
    """A line breaks a rule; the text names the line, the field and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, and what that one may do."""

    tenant: str
    most_urgent: int = MOST_URGENT
    least_urgent: int = LEAST_URGENT
    max_requests: int = 0  # of the tenant, live in the replica at once; 0: no limit
    weight: float = 1.0  # of the tenant among others that wait


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key's SHA-256 and its holder."""

    sha256: bytes = field(repr=False)
    caller: Caller


def parse_records(text: str) -> tuple[KeyRecord, ...]:
    """All records of a file. Raises InvalidRecords."""
    records: dict[bytes, KeyRecord] = {}
    weights: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        record = _record(line, number)
        if record.sha256 in records:
            raise InvalidRecords(f"line {number}: sha256 is that of an earlier line")
        if weights.setdefault(record.caller.tenant, record.caller.weight) != record.caller.weight:
            raise InvalidRecords(
                f"line {number}: weight must be the same in all records of a tenant"
            )
        records[record.sha256] = record
    if not records:
        raise InvalidRecords("holds no record")
    return tuple(records.values())


def _record(line: str, number: int) -> KeyRecord:
    fields = _object(line, number)
    if unknown := fields.keys() - _RULES:
        raise InvalidRecords(
            f"line {number}: {len(unknown)} of its fields are none of {', '.join(_RULES)}"
        )
    for name in ("tenant", "sha256"):
        if name not in fields:
            raise InvalidRecords(f"line {number}: {name} is required")
    for name, value in fields.items():
        if not _is_valid(name, value):
            raise InvalidRecords(f"line {number}: {name} must be {_RULES[name]}")
    most_urgent, least_urgent = fields.get("priorities", (MOST_URGENT, LEAST_URGENT))
    return KeyRecord(
        sha256=bytes.fromhex(fields["sha256"]),
        caller=Caller(
            tenant=fields["tenant"],
            most_urgent=most_urgent,
            least_urgent=least_urgent,
            max_requests=fields.get("max_requests", 0),
            weight=float(fields.get("weight", 1)),
        ),
    )


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRecords(f"line {number}: must be one JSON object") from None
    return value


_RULES = {
    "tenant": "1 to 64 characters of letters, digits, '.', '_' and '-'",
    "sha256": "64 hexadecimal digits in lower case",
    "priorities": f"[most urgent, least urgent], within {MOST_URGENT} to {LEAST_URGENT}",
    "max_requests": f"a whole number from 0 to {_MOST_REQUESTS}",
    "weight": f"a number from {_LEAST_WEIGHT} to {_MOST_WEIGHT}",
}


def _is_valid(name: str, value: Any) -> bool:
    match name:
        case "tenant":
            return isinstance(value, str) and _TENANT.fullmatch(value) is not None
        case "sha256":
            return isinstance(value, str) and _SHA256.fullmatch(value) is not None
        case "priorities":
            return (
                isinstance(value, list)
                and len(value) == 2
                and all(type(bound) is int for bound in value)
                and MOST_URGENT <= value[0] <= value[1] <= LEAST_URGENT
            )
        case "weight":
            return type(value) in {int, float} and _LEAST_WEIGHT <= value <= _MOST_WEIGHT
    return type(value) is int and 0 <= value <= _MOST_REQUESTS
