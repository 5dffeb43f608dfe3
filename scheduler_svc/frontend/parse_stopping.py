"""When outputs end, and what is sent of them. Knows nothing of tokens' text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.violations import Violations

MAX_STOPS = 1024
MAX_STOP_BYTES = 4096
# Each frontend that takes the request over reads them again.
MAX_STOP_BYTES_TOGETHER = 960 * 1024
MAX_STREAM_INTERVAL = 1024
_MAX_INT32 = 2**31 - 1
_LONGEST_MS = 2**53
_FIELD = "generation.stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The part of the rules that the core applies."""

    max_tokens: int  # 0: as many as fit
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    time_limit_ms: int  # 0: none


def parse_stopping(
    stopping: api.StoppingParams, *, limits: RequestLimits, violations: Violations
) -> Stopping:
    """When outputs end."""
    max_tokens = 0
    if stopping.HasField("max_tokens"):
        max_tokens = violations.integer(
            f"{_FIELD}.max_tokens", stopping.max_tokens, least=1, most=_MAX_INT32
        )
    min_tokens = violations.integer(
        f"{_FIELD}.min_tokens", stopping.min_tokens, least=0, most=max_tokens or _MAX_INT32
    )
    _check_stop_strings(stopping.stop, violations)
    time_limit_ms = 0
    if stopping.HasField("time_limit_s"):
        limit_s = violations.positive(f"{_FIELD}.time_limit_s", stopping.time_limit_s)
        time_limit_ms = whole_milliseconds(limit_s)
    return Stopping(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=_stop_token_ids(stopping.stop_token_ids, limits, violations),
        time_limit_ms=time_limit_ms,
    )


def check_output(output: api.OutputParams, *, violations: Violations) -> None:
    """Notes what is wrong with what is to be sent."""
    if output.HasField("stream_interval"):
        violations.integer(
            "generation.output.stream_interval",
            output.stream_interval,
            least=1,
            most=MAX_STREAM_INTERVAL,
        )


def whole_milliseconds(seconds: float) -> int:
    """Rounded up, so that what is above 0 stays above 0; bounded, so that it fits any message."""
    return min(math.ceil(1000 * seconds), _LONGEST_MS)


def _check_stop_strings(stops: Sequence[str], violations: Violations) -> None:
    field = f"{_FIELD}.stop"
    if len(stops) > MAX_STOPS:
        violations.add(field, f"must have at most {MAX_STOPS} strings, has {len(stops)}")
        return
    sizes = [len(stop.encode()) for stop in stops]
    for index, size in enumerate(sizes):
        if not 1 <= size <= MAX_STOP_BYTES:
            violations.add(
                f"{field}[{index}]", f"must have 1 to {MAX_STOP_BYTES} bytes, has {size}"
            )
    if sum(sizes) > MAX_STOP_BYTES_TOGETHER:
        violations.add(
            field, f"must have at most {MAX_STOP_BYTES_TOGETHER} bytes together, has {sum(sizes)}"
        )


def _stop_token_ids(
    ids: Sequence[int], limits: RequestLimits, violations: Violations
) -> tuple[int, ...]:
    field = f"{_FIELD}.stop_token_ids"
    if len(ids) > MAX_STOPS:
        violations.add(field, f"must have at most {MAX_STOPS} ids, has {len(ids)}")
        return ()
    checked = violations.token_ids(field, ids, vocab_size=limits.vocab_size)
    return tuple(sorted(set(checked)))
