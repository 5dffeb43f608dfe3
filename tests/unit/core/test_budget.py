"""What prompts may take of a step is shared out once."""

from scheduler_svc.core.budget import Allowance, Budget

SHORT, LONG = 100, 5000


def test_whole_prompts_leave_what_is_reserved() -> None:
    allowance = Allowance(Budget(100, 40), num_reserved=10)
    allowance.take(allowance.num_left)
    assert allowance.num_left == 0
    allowance.open_to_pieces()
    assert allowance.num_left_for(LONG) == 10
    allowance.take(10)
    assert allowance.num_left_for(LONG) == allowance.num_left_for(SHORT) == 0


def test_pieces_of_long_prompts_bring_a_step_to_the_lower_limit() -> None:
    allowance = Allowance(Budget(100, 40), num_reserved=10)
    allowance.take(25)
    allowance.open_to_pieces()
    assert allowance.num_left_for(LONG) == 15
    assert allowance.num_left_for(SHORT) == 75
    allowance.take(15)
    assert allowance.num_left_for(LONG) == 0
    assert allowance.num_left_for(SHORT) == 60


def test_a_prompt_of_a_few_budgets_is_short() -> None:
    budget = Budget(100, 40)
    assert not budget.is_long(400)
    assert budget.is_long(401)
