"""Rows with a grammar see every token before they go on, through every disturbance."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from scheduler_svc.core.grammar import GrammarState
from scheduler_svc.core.news import Attached
from scheduler_svc.core.plan import MaskedRow, StepPlan
from scheduler_svc.core.refusals import UnknownRequest
from scheduler_svc.core.request import EndReason, NewRequest, ResumedOutput
from tests.unit.core.replica import VOCAB_SIZE, Replica, expected_output, limits, prompt_of


@dataclass(eq=False)
class State:
    """Follows an output as the engine's state does."""

    tokens: list[int] = field(default_factory=list)

    def follow(self, row: MaskedRow) -> None:
        """Takes the row's tokens in; they must join what is there."""
        assert row.first_index <= len(self.tokens), "a token was never shown"
        known = self.tokens[row.first_index :]
        assert row.tokens.tolist()[: len(known)] == known, "a token was changed"
        self.tokens[row.first_index :] = row.tokens.tolist()


@dataclass
class Grammar:
    """Remembers the states it made, by output."""

    states: list[State] = field(default_factory=list)
    num_bytes: int = 0

    def begin(self) -> GrammarState:
        self.states.append(State())
        return self.states[-1]

    def retired(self) -> "Grammar":
        return Grammar(num_bytes=400)


def follow(plan: StepPlan) -> None:
    """What the engine does with a plan's masked rows."""
    for row in plan.masked_rows:
        assert isinstance(row.grammar, State)
        assert plan.slots[row.row] == row.slot
        row.grammar.follow(row)


class MaskingReplica(Replica):
    """Shows each plan to the states, before the next one can be made."""

    def issue(self) -> StepPlan | None:
        plan = super().issue()
        if plan is not None:
            follow(plan)
        return plan


def check_all_was_seen(replica: Replica, new: NewRequest, grammar: Grammar) -> None:
    """Each state saw all of its output but the last token."""
    for index, state in enumerate(grammar.states):
        expected = expected_output(new, VOCAB_SIZE, new.max_tokens or 0, index)
        assert replica.tokens(new, index) == expected
        assert state.tokens == expected[:-1]


def test_a_state_sees_every_token_of_every_output() -> None:
    replica, grammar = MaskingReplica(), Grammar()
    new = replica.add(prompt_of(10), grammar=grammar, num_outputs=3, max_tokens=12)
    replica.run()
    assert len(grammar.states) == 3
    check_all_was_seen(replica, new, grammar)


def test_an_ended_request_keeps_of_its_form_what_is_small_and_counted() -> None:
    replica, grammar = MaskingReplica(max_retained_tokens=150), Grammar()
    first, second = (
        replica.add(prompt_of(10), grammar=grammar, max_tokens=4, keep_for_s=60.0) for _ in "ab"
    )
    replica.run()

    def kept(new: NewRequest) -> Attached:
        return replica.core.attach(
            tenant=new.tenant,
            request_id=new.request_id,
            owner=new.owner,
            number=new.number + 10,
            deadline=None,
            now=replica.now,
        )

    with pytest.raises(UnknownRequest):
        kept(first)
    left = kept(second).request.grammar
    assert left is not grammar
    assert left is not None
    assert left.num_bytes == 400


def test_only_sampling_rows_are_masked() -> None:
    replica = MaskingReplica(limits(max_num_batched_tokens=8))
    replica.add(prompt_of(20), grammar=Grammar(), max_tokens=2)
    while replica.core.has_work:
        replica.step()
    assert [len(plan.masked_rows) for plan in replica.plans] == [0, 0, 1, 1]
    assert [row.first_index for plan in replica.plans for row in plan.masked_rows] == [0, 0]
    assert [len(row.tokens) for plan in replica.plans for row in plan.masked_rows] == [0, 1]


def test_a_row_waits_for_the_token_before_it_and_others_do_not() -> None:
    replica = MaskingReplica(max_steps_in_flight=2)
    for count in range(7):
        replica.add(prompt_of(7, first=count + 1), max_tokens=50)
    replica.add(prompt_of(7, first=9), max_tokens=50, grammar=Grammar())
    replica.step()
    first, second = replica.plans[:2]
    assert (len(first.slots), len(first.masked_rows)) == (8, 1)
    assert (len(second.slots), len(second.masked_rows)) == (7, 0)
    third = replica.issue()
    assert third is not None
    assert (len(third.slots), len(third.masked_rows)) == (8, 1)


def test_with_many_such_rows_one_step_is_planned_at_a_time() -> None:
    replica = MaskingReplica(max_steps_in_flight=2)
    for first in range(4):
        grammar = Grammar() if first < 2 else None
        replica.add(prompt_of(9, first=first + 1), max_tokens=50, grammar=grammar)
    assert replica.issue() is not None
    assert not replica.core.can_plan
    replica.deliver()
    plan = replica.issue()
    assert plan is not None
    assert (len(plan.slots), len(plan.masked_rows)) == (4, 2)


def test_preempted_outputs_show_their_tokens_again() -> None:
    replica = MaskingReplica(limits(num_blocks=14))
    grammars = [Grammar() for _ in range(3)]
    requests = [
        replica.add(prompt_of(9, first=index + 1), max_tokens=20, grammar=grammar)
        for index, grammar in enumerate(grammars)
    ]
    replica.run()
    assert replica.core.counts().total_preemptions > 0
    for new, grammar in zip(requests, grammars, strict=True):
        check_all_was_seen(replica, new, grammar)


@pytest.mark.parametrize("was_fatal", [False, True])
def test_a_new_epoch_shows_all_tokens(*, was_fatal: bool) -> None:
    replica, grammar = MaskingReplica(), Grammar()
    new = replica.add(max_tokens=20, grammar=grammar)
    for _ in range(5):
        replica.step()
    grammar.states[0].tokens.clear()
    replica.results.clear()
    replica.touched.clear()
    replica.restart_epoch(was_fatal=was_fatal)
    replica.run()
    check_all_was_seen(replica, new, grammar)


def test_resumed_tokens_are_shown() -> None:
    replica, grammar = MaskingReplica(), Grammar()
    new = replica.new(max_tokens=20)
    received = expected_output(new, VOCAB_SIZE, 20)[:7]
    resumed = ResumedOutput(tokens=np.array(received, np.int32))
    new = replica.new(
        max_tokens=20, grammar=grammar, resume=(resumed,), sampling=new.sampling, prompt=new.prompt
    )
    replica.submit(new)
    replica.run()
    check_all_was_seen(replica, new, grammar)


def test_an_output_whose_grammar_cannot_go_on_ends_and_its_row_is_dropped() -> None:
    replica, grammar = MaskingReplica(), Grammar()
    new = replica.add(max_tokens=20, grammar=grammar)
    other = replica.add(prompt_of(9, first=5), max_tokens=20)
    replica.step()
    plan = replica.issue()
    assert plan is not None
    replica.core.fail_masked(plan.masked_rows[0], "nothing fits", replica.now)
    replica.hear()
    end = replica.ends[-1]
    assert (end.reason, end.message, end.num_tokens) == (EndReason.ERROR, "nothing fits", 1)
    replica.core.fail_masked(plan.masked_rows[0], "again", replica.now)
    replica.run()
    assert len(replica.tokens(new)) == 1
    assert replica.tokens(other) == expected_output(other, VOCAB_SIZE, 20)
    replica.check_idle()
