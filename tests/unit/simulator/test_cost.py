"""The cost model keeps to the floors and to what was measured."""

import numpy as np
import pytest

from bench.simulator import traces
from bench.simulator.cost import QWEN3_0_6B, QWEN3_8B, ChunkWork, ModelShape, StepCost
from bench.simulator.experiment import Setup, run

SHAPES = pytest.mark.parametrize("shape", [QWEN3_0_6B, QWEN3_8B], ids=lambda shape: shape.name)


def test_sizes_are_those_of_the_models() -> None:
    assert QWEN3_0_6B.kv_token_bytes == 114_688
    assert QWEN3_8B.kv_token_bytes == 147_456
    assert QWEN3_0_6B.weight_bytes == pytest.approx(1.19e9, rel=0.01)
    assert QWEN3_8B.weight_bytes == pytest.approx(16.4e9, rel=0.01)


@pytest.mark.parametrize(("shape", "floor_ms"), [(QWEN3_0_6B, 0.277), (QWEN3_8B, 3.52)])
def test_one_stream_takes_more_than_reading_the_weights(shape: ModelShape, floor_ms: float) -> None:
    step_ms = 1e3 * StepCost(shape).step_s(num_decode_rows=1, num_context_tokens=256)
    assert floor_ms < step_ms < floor_ms + 1.6


@SHAPES
def test_a_few_prompt_tokens_beside_decode_rows_are_nearly_free_and_many_are_not(
    shape: ModelShape,
) -> None:
    cost = StepCost(shape)

    def step_s(*chunks: ChunkWork) -> float:
        return cost.step_s(num_decode_rows=16, num_context_tokens=8000, chunks=chunks)

    assert step_s(ChunkWork(64, 0)) < 1.35 * step_s()
    assert step_s(ChunkWork(8192, 0)) > 4 * step_s(ChunkWork(1024, 0))


@SHAPES
def test_a_chunk_deep_in_a_prompt_costs_more_than_the_first(shape: ModelShape) -> None:
    first, deep = (
        StepCost(shape).step_s(
            num_decode_rows=0, num_context_tokens=0, chunks=[ChunkWork(512, start)]
        )
        for start in (0, 30_000)
    )
    assert deep > 1.5 * first


@SHAPES
def test_several_steps_at_once_take_what_each_takes_alone(shape: ModelShape) -> None:
    cost, contexts = StepCost(shape), np.array([10, 9_000, 400_000])
    alone = [
        cost.step_s(num_decode_rows=32, num_context_tokens=context) for context in contexts.tolist()
    ]
    assert cost.decode_steps_s(num_rows=32, num_context_tokens=contexts) == pytest.approx(alone)


@pytest.mark.parametrize(("shape", "tokens_per_s"), [(QWEN3_0_6B, 25_500), (QWEN3_8B, 9_900)])
def test_the_quoted_benchmark_runs_as_fast_as_its_measured_kernels_add_up_to(
    shape: ModelShape, tokens_per_s: float
) -> None:
    outcome = run(Setup(shape=shape), traces.batch(num_requests=256, seed=0))
    assert outcome.summary.output_tokens_per_s == pytest.approx(tokens_per_s, rel=0.1)
