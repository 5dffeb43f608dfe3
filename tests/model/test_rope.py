"""Rotary frequencies equal transformers' for every supported kind."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.model.rigs import CPU
from worker_svc.layers.linear import TensorKind
from worker_svc.layers.rope_frequencies import inverse_frequencies
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.models.rope_spec import (
    DefaultRope,
    LinearRope,
    Llama3Rope,
    RopeSpec,
    YarnRope,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

KINDS: list[tuple[dict[str, object], RopeSpec]] = [
    ({"rope_type": "linear", "factor": 3.0}, LinearRope(5e5, 3.0)),
    (LLAMA3, Llama3Rope(5e5, 32.0, 1.0, 4.0, 8192)),
    (YARN, YarnRope(5e5, 4.0, 32768, 32.0, 1.0, True, 1.0)),
    ({**YARN, "truncate": False}, YarnRope(5e5, 4.0, 32768, 32.0, 1.0, False, 1.0)),
    # so slow a bound lies beyond the last pair of features
    ({**YARN, "beta_slow": 1e-3}, YarnRope(5e5, 4.0, 32768, 32.0, 1e-3, True, 1.0)),
    (
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
        YarnRope(5e5, 4.0, 32768, 16.0, 2.0, True, 1.0),
    ),
]


@pytest.mark.parametrize(("parameters", "rope"), KINDS)
def test_frequencies_equal_transformers(parameters: dict[str, object], rope: RopeSpec) -> None:
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 5e5, **parameters},
    )
    expected, _ = ROPE_INIT_FUNCTIONS[str(parameters["rope_type"])](config, torch.device("cpu"))
    found = inverse_frequencies(rope, head_dim=128)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    rotary = RotaryEmbedding(
        DefaultRope(1e4), head_dim=16, num_positions=64, kind=TensorKind(torch.float32, CPU)
    )
    q, k = torch.randn(2, 1, 3, 16, generator=torch.Generator().manual_seed(1)).unbind(0)

    def score(query_at: int, key_at: int) -> torch.Tensor:
        turned_q = rotary(q, rotary.rows(torch.tensor([query_at])))
        turned_k = rotary(k, rotary.rows(torch.tensor([key_at])))
        torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
        return (turned_q * turned_k).sum(dim=-1)

    torch.testing.assert_close(score(9, 4), score(60, 55))
    torch.testing.assert_close(score(7, 7), (q * k).sum(dim=-1))
    assert float((score(9, 4) - score(9, 5)).abs().max()) > 1e-3
