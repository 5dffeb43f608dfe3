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
from scheduler_svc.core.news import OutputEnd, OutputSoFar, RequestStart, StepNews, TokenRows
from scheduler_svc.core.refusals import UnknownRequest
from scheduler_svc.engine.connection import Connection
from scheduler_svc.engine.news_codec import encode_missed, encode_news, split_rows

Output = tuple[int, int]  # request number, output index


class Tokens(Protocol):
    """What delivery needs of the core."""

    def output_so_far(
        self, *, owner: int, number: int, output_index: int, first_token_index: int
    ) -> OutputSoFar:
        """An output's tokens from an index on; raises UnknownRequest."""


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

    def add(
        self, rows: TokenRows | None, ends: list[OutputEnd], starts: list[RequestStart]
    ) -> None:
        if rows is not None:
            columns = (rows.numbers, rows.output_indexes, rows.first_token_indexes)
            for number, index, first in zip(*(c.tolist() for c in columns), strict=True):
                self.first_missed.setdefault((number, index), first)
        self.ends.update({(end.number, end.output_index): end for end in ends})
        self.starts.update({start.number: start for start in starts})

    def forget_output(self, output: Output) -> None:
        self.first_missed.pop(output, None)
        self.ends.pop(output, None)

    def forget_request(self, number: int) -> None:
        for output in [o for o in (*self.first_missed, *self.ends) if o[0] == number]:
            self.forget_output(output)
        self.starts.pop(number, None)


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
        if not news.ends and not news.starts:
            for owner, mine in rows.items():
                self._tell(owner, mine, [], [])
            return
        ends: dict[int, list[OutputEnd]] = {}
        for end in news.ends:
            ends.setdefault(end.owner, []).append(end)
        starts: dict[int, list[RequestStart]] = {}
        for start in news.starts:
            starts.setdefault(start.owner, []).append(start)
        for owner in {**rows, **ends, **starts}:
            self._tell(owner, rows.get(owner), ends.get(owner, []), starts.get(owner, []))

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

    def _tell(
        self,
        owner: int,
        rows: TokenRows | None,
        ends: list[OutputEnd],
        starts: list[RequestStart],
    ) -> None:
        connection = self._connections.connection(owner)
        if connection is None or connection.is_lost:
            return  # nobody reads; whoever attaches gets everything
        behind = self._behind.get(owner)
        if behind is None:
            if connection.offer(encode_news(rows, ends, starts)):
                return
            behind = self._behind[owner] = _Behind()
        behind.add(rows, ends, starts)

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
            rows.append((number, index, first, output.tokens))
        return encode_missed(rows, list(behind.ends.values()), list(behind.starts.values()))
