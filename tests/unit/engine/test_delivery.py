"""News reaches each owner once and in order, however its socket behaves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.news import (
    OutputEnd,
    OutputSoFar,
    RequestStart,
    StepNews,
    TokenRows,
    no_rows,
)
from scheduler_svc.core.records import PromptRecords
from scheduler_svc.core.refusals import UnknownRequest
from scheduler_svc.core.request import EndReason
from scheduler_svc.engine.connection import Connection
from scheduler_svc.engine.delivery import Delivery
from tests.unit.engine.recording_sender import RecordingSender

Key = tuple[int, int, int]  # owner, number, output index


class Model:
    """The core's part: knows all tokens. And the frontends' part: reads what arrives."""

    def __init__(self, owners: list[int]) -> None:
        self.sender = RecordingSender()
        self.connections = {
            owner: Connection(
                self.sender,
                identity=b"%d" % owner,
                owner=owner,
                name=f"frontend-{owner}",
                incarnation=1,
                now=0.0,
            )
            for owner in owners
        }
        self.tokens: dict[Key, list[int]] = {}
        self.forgotten: set[Key] = set()
        self.read: dict[Key, list[int]] = {}
        self.ended: dict[Key, int] = {}
        self.started: list[tuple[int, int]] = []
        self.counted: list[RequestStart] = []
        self.numbers: dict[bytes, int] = {}
        self.delivery = Delivery(self, self, note_starts=self.counted.extend)

    def connection(self, owner: int) -> Connection | None:
        return self.connections.get(owner)

    def output_so_far(
        self, *, owner: int, number: int, output_index: int, first_token_index: int
    ) -> OutputSoFar:
        key = (owner, number, output_index)
        if key in self.forgotten:
            raise UnknownRequest(request_id="gone")
        tokens = np.array(self.tokens[key][first_token_index:], np.int32)
        return OutputSoFar(tokens=tokens, end=None)

    def prompt_records_so_far(self, *, owner: int, number: int, first_position: int) -> bytes:
        if (owner, number, 0) in self.forgotten:
            raise UnknownRequest(request_id="gone")
        return b"abcdefgh"[4 * first_position :]

    def step(
        self,
        keys: list[Key],
        *,
        ends: list[Key] | None = None,
        starts: list[tuple[int, int]] | None = None,
    ) -> None:
        """Every output named gets a token; then those in `ends` end."""
        firsts = []
        for key in keys:
            known = self.tokens.setdefault(key, [])
            firsts.append(len(known))
            known.append(100 * key[1] + len(known))
        columns = np.array(keys, np.int32).reshape(-1, 3).T
        rows = TokenRows(
            owners=columns[0],
            numbers=columns[1],
            output_indexes=columns[2],
            first_token_indexes=np.array(firsts, np.int32),
            tokens=np.array([self.tokens[key][-1] for key in keys], np.int32),
        )
        told_ends = tuple(
            OutputEnd(
                owner=key[0],
                number=key[1],
                output_index=key[2],
                num_tokens=len(self.tokens.get(key, [])),
                reason=EndReason.LENGTH,
            )
            for key in ends or []
        )
        told_starts = tuple(
            RequestStart(owner=owner, number=number, num_cached_tokens=3, queued_us=9)
            for owner, number in starts or []
        )
        self.delivery.deliver(StepNews(rows=rows, ends=told_ends, starts=told_starts))

    def read_all(self) -> None:
        """Frontends read what their sockets took; fails on repeats, gaps and loose numbers."""
        for identity, payload in self.sender.take():
            message = engine.CoreToFrontend.FromString(payload)
            self.numbers[identity] = self.numbers.get(identity, 0) + 1
            assert message.message_number == self.numbers[identity]
            self._read_deliver(int(identity), message.deliver)

    def _read_deliver(self, owner: int, deliver: engine.Deliver) -> None:
        numbers, indexes, firsts, tokens = (
            np.frombuffer(column, np.int32).tolist()
            for column in (
                *(deliver.numbers, deliver.output_indexes),
                *(deliver.first_token_indexes, deliver.tokens),
            )
        )
        counts = np.frombuffer(deliver.token_counts, np.int32).tolist() or [1] * len(numbers)
        for number, index, first, count in zip(numbers, indexes, firsts, counts, strict=True):
            known = self.read.setdefault((owner, number, index), [])
            assert first == len(known)
            known += tokens[:count]
            tokens = tokens[count:]
        for end in deliver.ends:
            key = (owner, end.number, end.output_index)
            assert key not in self.ended
            assert len(self.read.get(key, [])) == end.num_tokens
            self.ended[key] = end.num_tokens
        self.started += [(owner, start.number) for start in deliver.starts]


def test_each_owner_gets_one_message_a_step_with_its_rows() -> None:
    model = Model([1, 2])
    keys = [(1, 5, 0), (2, 5, 0), (1, 6, 1), (2, 8, 0)]
    model.step(keys, starts=[(1, 5)], ends=[(2, 8, 0)])
    assert sorted(identity for identity, _ in model.sender.sent) == [b"1", b"2"]
    model.read_all()
    assert model.read == {key: model.tokens[key] for key in keys}
    assert model.started == [(1, 5)]
    assert [start.number for start in model.counted] == [5]
    assert model.ended == {(2, 8, 0): 1}


def test_step_without_news_for_an_owner_sends_nothing() -> None:
    model = Model([1, 2])
    model.step([(1, 5, 0)])
    assert [identity for identity, _ in model.sender.sent] == [b"1"]
    model.sender.take()
    model.step([])
    assert model.sender.sent == []


def test_news_of_nobody_and_of_lost_connections_is_dropped() -> None:
    model = Model([1])
    model.connections[1].lose()
    model.step([(0, 5, 0), (1, 6, 0), (9, 7, 0)], ends=[(9, 7, 0)])
    assert model.sender.sent == []
    assert not model.delivery.is_behind


def test_what_the_owner_lost_meanwhile_is_not_delivered() -> None:
    model = Model([1])
    model.sender.full.add(b"1")
    model.step([(1, 5, 0), (1, 6, 0), (1, 7, 0), (1, 8, 0)], ends=[(1, 8, 0)])
    model.delivery.forget_request(1, 5)
    model.delivery.forget_output(1, 6, 0)
    model.forgotten.add((1, 8, 0))
    model.sender.full.clear()
    model.delivery.retry()
    model.read_all()
    assert model.read == {(1, 7, 0): model.tokens[1, 7, 0]}
    assert model.ended == {}
    assert not model.delivery.is_behind


def test_answers_that_wait_go_out_before_news() -> None:
    model = Model([1])
    model.sender.full.add(b"1")
    accepted = engine.Accepted(number=5, max_tokens=3)
    model.connections[1].post(engine.CoreToFrontend(accepted=accepted))
    model.sender.full.clear()
    model.step([(1, 5, 0)])
    kinds = [
        engine.CoreToFrontend.FromString(payload).WhichOneof("kind")
        for _, payload in model.sender.sent
    ]
    assert kinds == ["accepted", "deliver"]


@given(
    steps=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 1)), unique=True
            ),
            st.sets(st.sampled_from([b"1", b"2"])),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_any_pattern_of_full_sockets_delivers_every_token_once(
    steps: list[tuple[list[Key], set[bytes], bool]],
) -> None:
    model = Model([1, 2])
    for keys, full, is_retried in steps:
        model.sender.full = full
        model.step(keys)
        if is_retried:
            model.delivery.retry()
        model.read_all()
    model.sender.full = set()
    model.step([], ends=list(model.tokens))
    model.delivery.retry()
    model.read_all()
    assert model.read == model.tokens
    assert model.ended == {key: len(tokens) for key, tokens in model.tokens.items()}
    assert not model.delivery.is_behind


def test_records_of_prompts_that_were_missed_come_from_the_core() -> None:
    model = Model([1])
    model.sender.full.add(b"1")
    for position in (1, 2):
        stretch = PromptRecords(owner=1, number=5, first_position=position, records=b"..")
        model.delivery.deliver(
            StepNews(rows=no_rows(), ends=(), starts=(), prompt_records=(stretch,))
        )
    model.sender.full.clear()
    model.delivery.retry()
    [(_, payload)] = model.sender.take()
    [told] = engine.CoreToFrontend.FromString(payload).deliver.prompt_records
    assert (told.number, told.first_position, told.records) == (5, 1, b"efgh")
