"""Collects every rule a request breaks, while its valid values pass through.

A check returns the value when the rule holds and a stand-in that is in range otherwise, so that
parsing goes on to the next field; `raise_if_any` comes before anything is used.
"""

import math
from collections.abc import Iterable, Sequence

from google.protobuf.descriptor import EnumDescriptor

from scheduler_svc.frontend.errors import InvalidRequest, Violation

_MAX_REPORTED = 100


class Violations:
    """The violations of one request."""

    def __init__(self) -> None:
        self._found: list[Violation] = []
        self.num_found = 0
        """How many were noted so far, those beyond a hundred among them."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, field: str, rule: str) -> None:
        """Notes a broken rule; beyond a hundred nobody reads them."""
        self.num_found += 1
        if len(self._found) < _MAX_REPORTED:
            self._found.append(Violation(field=field, rule=rule))

    def raise_if_any(self) -> None:
        """Raises InvalidRequest with everything found."""
        if self._found:
            raise InvalidRequest(self._found)

    def integer(self, field: str, value: int, *, least: int, most: int) -> int:
        """The value if it is in the range, both ends included."""
        if least <= value <= most:
            return value
        self.add(field, f"must be {least} to {most}, got {value}")
        return least

    def number(self, field: str, value: float, *, least: float, most: float) -> float:
        """The value if it is a number in the range, both ends included."""
        if least <= value <= most:  # false for NaN
            return value
        self.add(field, f"must be {least:g} to {most:g}, got {value:g}")
        return least

    def positive(self, field: str, value: float) -> float:
        """The value if it is a finite number above 0."""
        if 0 < value < math.inf:
            return value
        self.add(field, f"must be above 0 and finite, got {value:g}")
        return 1.0

    def enum(self, field: str, value: int, kind: EnumDescriptor) -> int:
        """The value if the enum has it; a newer caller may send others."""
        if value in kind.values_by_number:
            return value
        self.add(field, f"must be one of {', '.join(kind.values_by_name)}, got {value}")
        return 0

    def token_ids(self, field: str, ids: Sequence[int], *, vocab_size: int) -> Sequence[int]:
        """The ids if all are in the vocabulary; names the first few that are not."""
        if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
            return ids
        for index, token_id in _first_outside(ids, vocab_size=vocab_size):
            self.add(f"{field}[{index}]", f"must be 0 to {vocab_size - 1}, got {token_id}")
        return ()


def _first_outside(ids: Sequence[int], *, vocab_size: int) -> Iterable[tuple[int, int]]:
    found = 0
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            yield index, token_id
            found += 1
        if found == 5:
            return
