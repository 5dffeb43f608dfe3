"""Brings the core's news to frontends without ever waiting for one. Knows nothing of how news
comes about.

A frontend that cannot take its news is *behind*: from then on only how far each of its outputs was
served is kept, and once its socket takes messages again one message brings all that was missed,
with the tokens from the core.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.news import OutputEnd, OutputSoFar, RequestStart, StepNews
from scheduler_svc.core.records import PromptRecords
from scheduler_svc.core.refusals import UnknownRequest
from scheduler_svc.engine.connection import Connection
from scheduler_svc.engine.news_codec import OwnerNews, encode_missed, encode_news, split_rows

Output = tuple[int, int]  # request number, output index


class Tokens(Protocol):
    """What delivery needs of the core."""

    def output_so_far(
        self, *, owner: int, number: int, output_index: int, first_token_index: int
    ) -> OutputSoFar:
        """An output's tokens from an index on; raises UnknownRequest."""

    def prompt_records_so_far(self, *, owner: int, number: int, first_position: int) -> bytes:
        """Records of the prompt from a position on; raises UnknownRequest."""


class Connections(Protocol):
    """What delivery needs of the frontend link."""

    def connection(self, owner: int) -> Connection | None:
        """The living connection of an owner."""


@dataclass(slots=True)
class _Behind:
    """What one frontend was not told."""

    first_missed: dict[Output, int] = field(default_factory=dict)
    ends: dict[Output, OutputEnd] = field(default_factory=dict)
    starts: dict[int, RequestStart] = field(default_factory=dict)
    first_missed_positions: dict[int, int] = field(default_factory=dict)  # of prompts' records

    def add(self, news: OwnerNews) -> None:
        if news.rows is not None:
            rows = news.rows
            columns = (rows.numbers, rows.output_indexes, rows.first_token_indexes)
            for number, index, first in zip(*(c.tolist() for c in columns), strict=True):
                self.first_missed.setdefault((number, index), first)
        self.ends.update({(end.number, end.output_index): end for end in news.ends})
        self.starts.update({start.number: start for start in news.starts})
        for stretch in news.prompt_records:
            self.first_missed_positions.setdefault(stretch.number, stretch.first_position)

    def forget_output(self, output: Output) -> None:
        self.first_missed.pop(output, None)
        self.ends.pop(output, None)

    def forget_request(self, number: int) -> None:
        for output in [o for o in (*self.first_missed, *self.ends) if o[0] == number]:
            self.forget_output(output)
        self.starts.pop(number, None)
        self.first_missed_positions.pop(number, None)


class Delivery:
    """News in, numbered messages out."""

    def __init__(
        self,
        connections: Connections,
        tokens: Tokens,
        *,
        note_starts: Callable[[Iterable[RequestStart]], None],
    ) -> None:
        """`note_starts` counts them: all news passes here, whoever asked the core for it."""
        self._connections = connections
        self._tokens = tokens
        self._note_starts = note_starts
        self._behind: dict[int, _Behind] = {}

    @property
    def is_behind(self) -> bool:
        """Whether some frontend was not told all."""
        return bool(self._behind)

    def deliver(self, news: StepNews) -> None:
        """Tells each frontend its part."""
        self._note_starts(news.starts)
        rows = dict(split_rows(news.rows))
        parts = {owner: OwnerNews(rows=mine) for owner, mine in rows.items()}
        for end in news.ends:
            parts.setdefault(end.owner, OwnerNews()).ends.append(end)
        for start in news.starts:
            parts.setdefault(start.owner, OwnerNews()).starts.append(start)
        for stretch in news.prompt_records:
            parts.setdefault(stretch.owner, OwnerNews()).prompt_records.append(stretch)
        for owner, part in parts.items():
            self._tell(owner, part)

    def retry(self) -> None:
        """Tells those who are behind what they missed, if their sockets take it now."""
        for owner, behind in list(self._behind.items()):
            connection = self._connections.connection(owner)
            if connection is None or connection.is_lost:
                del self._behind[owner]  # whoever attaches next gets everything
            elif connection.flush() and connection.offer(self._missed(owner, behind)):
                del self._behind[owner]

    def forget_owner(self, owner: int) -> None:
        """The connection is over."""
        self._behind.pop(owner, None)

    def forget_request(self, owner: int, number: int) -> None:
        """The owner wants nothing more of a request, or owns it no longer."""
        if owner in self._behind:
            self._behind[owner].forget_request(number)

    def forget_output(self, owner: int, number: int, output_index: int) -> None:
        """The owner has said where the output ends."""
        if owner in self._behind:
            self._behind[owner].forget_output((number, output_index))

    def _tell(self, owner: int, news: OwnerNews) -> None:
        connection = self._connections.connection(owner)
        if connection is None or connection.is_lost:
            return  # nobody reads; whoever attaches gets everything
        behind = self._behind.get(owner)
        if behind is None:
            if connection.offer(encode_news(news)):
                return
            behind = self._behind[owner] = _Behind()
        behind.add(news)

    def _missed(self, owner: int, behind: _Behind) -> engine.CoreToFrontend:
        rows = []
        for (number, index), first in list(behind.first_missed.items()):
            try:
                output = self._tokens.output_so_far(
                    owner=owner, number=number, output_index=index, first_token_index=first
                )
            except UnknownRequest:
                behind.forget_request(number)
                continue
            rows.append((number, index, first, output))
        rest = OwnerNews(
            ends=list(behind.ends.values()),
            starts=list(behind.starts.values()),
            prompt_records=self._missed_prompt_records(owner, behind),
        )
        return encode_missed(rows, rest)

    def _missed_prompt_records(self, owner: int, behind: _Behind) -> list[PromptRecords]:
        stretches = []
        for number, first in behind.first_missed_positions.items():
            try:
                records = self._tokens.prompt_records_so_far(
                    owner=owner, number=number, first_position=first
                )
            except UnknownRequest:
                continue  # it is over
            stretch = PromptRecords(
                owner=owner, number=number, first_position=first, records=records
            )
            stretches.append(stretch)
        return stretches
