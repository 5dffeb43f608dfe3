"""What clients and operators ask about the core, over its sockets."""

import time

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import admin_pb2 as admin
from tests.unit.engine.running_engine import ScriptedSupervisor
from tests.unit.engine.scripted_frontend import LIMIT_S, ScriptedFrontend
from tests.unit.engine.scripted_rank import Script
from tests.unit.engine.world import World


def estimate(frontend: ScriptedFrontend, prompt: list[int], *, call: int) -> engine.EstimateAnswer:
    tokens = b"".join(token.to_bytes(4, "little") for token in prompt)
    question = engine.Estimate(call=call, prompt_tokens=tokens)
    frontend.send(engine.FrontendToCore(estimate=question))
    frontend.pump_until(lambda: call in frontend.estimates)
    return frontend.estimates[call]


def ask(supervisor: ScriptedSupervisor, order: control.ControlMessage) -> control.ChildMessage:
    supervisor.order(order)
    end = time.monotonic() + LIMIT_S
    while not supervisor.answers:
        assert time.monotonic() < end, "no answer came"
        supervisor.pump()
        time.sleep(0.01)
    return supervisor.answers.pop()


def listed(
    supervisor: ScriptedSupervisor, request: admin.ListRequestsRequest | None = None
) -> admin.ListRequestsResponse:
    asked = control.ListRequests(call=5, request=request)
    answer = ask(supervisor, control.ControlMessage(list_requests=asked)).request_list
    assert answer.call == 5
    return answer.response


def flush(supervisor: ScriptedSupervisor) -> int:
    asked = control.FlushPrefixCache(call=6)
    answer = ask(supervisor, control.ControlMessage(flush_prefix_cache=asked)).cache_flushed
    assert answer.call == 6
    return answer.response.num_blocks


def test_a_frontend_learns_what_a_request_would_meet(world: World) -> None:
    world.engine()
    world.rank()
    frontend = world.frontend()
    prompt = list(range(1, 40))
    frontend.submit(1, prompt)
    frontend.pump_until(lambda: frontend.is_ended(1))
    answer = estimate(frontend, prompt, call=1)
    assert answer.num_cached_tokens > 0
    assert (answer.num_requests_ahead, answer.num_tokens_ahead) == (0, 0)
    assert answer.HasField("first_token_us")


def test_a_column_that_is_none_is_not_answered_and_nothing_breaks(world: World) -> None:
    world.engine()
    world.rank()
    frontend = world.frontend()
    bad = engine.Estimate(call=1, prompt_tokens=b"abc")
    frontend.send(engine.FrontendToCore(estimate=bad))
    assert estimate(frontend, [1, 2], call=2).num_cached_tokens == 0
    assert 1 not in frontend.estimates


def test_an_operator_sees_what_lives_and_empties_the_cache(world: World) -> None:
    engine_ = world.engine()
    world.rank(script=Script(step_s=0.02))
    supervisor = world.supervisor(engine_)
    frontend = world.frontend()
    frontend.pump_until(supervisor.knows_core)
    frontend.submit(1, list(range(1, 40)), request_id="long", max_tokens=500)
    frontend.pump_until(lambda: len(frontend.tokens(1)) > 2)
    wanted = admin.ListRequestsRequest(include_blocks=True)
    response = listed(supervisor, wanted)
    assert response.num_live_requests == 1
    (request,) = response.requests
    assert (request.request_id, request.prompt_tokens) == ("long", 39)
    (output,) = request.outputs
    assert output.phase == admin.OUTPUT_PHASE_DECODE
    assert output.wait_reason == admin.WAIT_REASON_UNSPECIFIED
    assert output.num_tokens > 2
    assert len(output.block_ids) == output.num_blocks > 0
    (tenant,) = response.tenants
    assert (tenant.num_live_requests, tenant.prompt_tokens) == (1, 39)
    assert flush(supervisor) > 0
    assert flush(supervisor) == 0
    frontend.cancel(1, "long")
    frontend.pump_until(lambda: frontend.is_ended(1))
    assert not listed(supervisor).requests
