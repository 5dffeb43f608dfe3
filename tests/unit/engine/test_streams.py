"""Requests through the real loop and core, over real sockets, with a rank that reads the contract
by itself.
"""

import pytest

from octavo.internal.v1 import engine_pb2 as engine
from tests.unit.engine.scripted_rank import expected_tokens
from tests.unit.engine.world import World


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_tokens_are_those_of_the_model(world: World, max_steps_in_flight: int) -> None:
    world.engine(max_steps_in_flight=max_steps_in_flight)
    world.rank()
    frontend = world.frontend()
    prompts = {n: [n, *range(5, 5 + 3 * n)] for n in range(1, 20)}
    for number, prompt in prompts.items():
        frontend.submit(number, prompt, max_tokens=number + 2)
    frontend.pump_until(lambda: all(frontend.is_ended(number) for number in prompts))
    for number, prompt in prompts.items():
        assert frontend.tokens(number) == expected_tokens(prompt, number + 2)
        end = frontend.outputs[number, 0].end
        assert end is not None
        assert end.reason == engine.END_REASON_LENGTH
        assert number in frontend.starts
