"""The floors are those that the design quotes for Qwen3's sizes."""

import pytest

from bench.roofline import MODELS, Roofline


@pytest.mark.parametrize(
    ("model", "weights_gb", "kv_bytes", "one_stream_ms"),
    [
        ("0.6B", 1.19, 114_688, 0.277),
        ("4B", 8.04, 147_456, 1.87),
        ("8B", 15.14, 147_456, 3.52),
        ("32B", 63.97, 262_144, 14.9),
    ],
)
def test_a_decode_step_reads_each_weight_once(
    model: str, weights_gb: float, kv_bytes: int, one_stream_ms: float
) -> None:
    roofline = Roofline(MODELS[model])
    assert roofline.weight_bytes / 1e9 == pytest.approx(weights_gb, abs=0.01)
    assert roofline.kv_bytes_per_token == kv_bytes
    assert 1e3 * roofline.decode_s(1, 0) == pytest.approx(one_stream_ms, rel=0.005)


def test_the_larger_of_bytes_and_operations_counts() -> None:
    roofline = Roofline(MODELS["8B"])
    assert roofline.decode_s(256, 256 * 1024) > roofline.decode_s(256, 0)
    assert roofline.prefill_s(4096) == pytest.approx(2 * roofline.prefill_s(2048), rel=0.1)
    assert Roofline(MODELS["8B"], num_ranks=2).decode_s(8, 0) == roofline.decode_s(8, 0) / 2
