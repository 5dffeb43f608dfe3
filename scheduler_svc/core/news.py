"""What the owners of requests are told. Knows nothing of messages or sockets.

An *owner* is a positive number that the engine gives to a frontend's connection; NO_OWNER stands
for nobody, and news of such requests is for the engine's metrics only.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.records import PromptRecords
from scheduler_svc.core.request import EndReason, NewRequest

NO_OWNER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEnd:
    """An output ended. Every output of an accepted request ends exactly once."""

    owner: int
    number: int
    output_index: int
    num_tokens: int  # generated, in total
    reason: EndReason
    stop_token_id: int | None = None
    message: str = ""
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStart:
    """A request's prompt was scheduled for the first time."""

    owner: int
    number: int
    num_cached_tokens: int
    queued_us: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRows:
    """The tokens of one step, as columns: one token a row."""

    owners: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.int32]
    output_indexes: npt.NDArray[np.int32]
    first_token_indexes: npt.NDArray[np.int32]  # among the output's generated tokens
    tokens: npt.NDArray[np.int32]
    records: tuple[bytes, ...] | None = None  # one a row, empty where none is wanted; None: no row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNews:
    """What happened since the last news. An end's last tokens are in `rows` or came earlier."""

    rows: TokenRows
    ends: tuple[OutputEnd, ...]
    starts: tuple[RequestStart, ...]
    prompt_records: tuple[PromptRecords, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReference:
    """A request as its owner knows it."""

    owner: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The request is taken; it ends exactly once from here on."""

    max_tokens: int  # effective bound of each output's tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputSoFar:
    """Generated tokens of an output from some index on, and its end if it ended."""

    tokens: npt.NDArray[np.int32]
    end: OutputEnd | None
    records: bytes = b""  # of these tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attached:
    """A known request got another owner; what follows is news from the ends of these tokens."""

    request: NewRequest  # as it is held; its owner, number and resume are those it came with
    deadline: float | None
    outputs: tuple[OutputSoFar, ...]
    max_tokens: int
    num_cached_tokens: int | None  # None while it has not run
    superseded: OwnerReference | None  # who is to be told that it owns the request no more
    prompt_records: bytes = b""  # so far


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """What a cancel by name met."""

    is_known: bool
    was_finished: bool


def no_rows() -> TokenRows:
    """Rows of news without tokens."""
    none = np.empty(0, np.int32)
    return TokenRows(
        owners=none, numbers=none, output_indexes=none, first_token_indexes=none, tokens=none
    )


class NewsBox:
    """Ends, starts and records of prompts that are not told yet."""

    def __init__(self) -> None:
        self.ends: list[OutputEnd] = []
        self.starts: list[RequestStart] = []
        self.prompt_records: list[PromptRecords] = []

    def take(self, rows: TokenRows) -> StepNews:
        """All of it, with a step's tokens; the box is empty then."""
        news = StepNews(
            rows=rows,
            ends=tuple(self.ends),
            starts=tuple(self.starts),
            prompt_records=tuple(self.prompt_records),
        )
        self.ends.clear()
        self.starts.clear()
        self.prompt_records.clear()
        return news
