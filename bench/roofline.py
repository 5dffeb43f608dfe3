"""What a GPU allows: the floors of a decode step and of a prefill, from bytes and operations.

    python bench/roofline.py --model 0.6B --rows 1 8 64 256 --contexts 1024 4096 16384

Formulas: every weight is read once a step and every key and value once; the larger of that time
and of the operations' time is the floor. Ceilings are those measured on an H200.
"""

import argparse
import json
from dataclasses import dataclass

from worker_svc.models.rope_spec import DefaultRope
from worker_svc.models.spec import ModelSpec

BYTES_PER_S = 4.30e12
FLOPS_PER_S = 770e12
_BYTES_PER_VALUE = 2


def _qwen3(
    *, layers: int, hidden: int, heads: int, inner: int, tied: bool, kv_heads: int = 8
) -> ModelSpec:
    return ModelSpec(
        architecture="Qwen3ForCausalLM",
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        vocab_size=151_936,
        norm_epsilon=1e-6,
        has_qk_norm=True,
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        has_tied_head=tied,
        rope=DefaultRope(theta=1e6),
        max_position_embeddings=40_960,
        eos_token_ids=(151_645,),
        stored_dtype="bfloat16",
    )


MODELS = {
    "0.6B": _qwen3(layers=28, hidden=1024, heads=16, inner=3072, tied=True),
    "4B": _qwen3(layers=36, hidden=2560, heads=32, inner=9728, tied=True),
    "8B": _qwen3(layers=36, hidden=4096, heads=32, inner=12288, tied=False),
    "32B": _qwen3(layers=64, hidden=5120, heads=64, inner=25600, tied=False),
}
"""The shapes of Qwen3."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on so many GPUs that reach these rates."""

    spec: ModelSpec
    num_ranks: int = 1
    bytes_per_s: float = BYTES_PER_S
    flops_per_s: float = FLOPS_PER_S

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's products."""
        spec = self.spec
        heads = spec.num_heads + 2 * spec.num_kv_heads
        attention = spec.hidden_size * heads * spec.head_dim
        output = spec.num_heads * spec.head_dim * spec.hidden_size
        return attention + output + 3 * spec.hidden_size * spec.intermediate_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads; looking up embeddings is free."""
        spec = self.spec
        norms = 2 * spec.hidden_size + 2 * spec.head_dim
        head = spec.hidden_size + spec.vocab_size * spec.hidden_size
        return _BYTES_PER_VALUE * (spec.num_layers * (self.layer_weights + norms) + head)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        spec = self.spec
        return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * _BYTES_PER_VALUE

    def decode_s(self, num_rows: int, num_keys: int) -> float:
        """Floor of a decode step of `num_rows` over `num_keys` keys of all rows together."""
        spec = self.spec
        num_bytes = self.weight_bytes + self.kv_bytes_per_token * num_keys
        products = spec.num_layers * self.layer_weights + spec.vocab_size * spec.hidden_size
        attention = 4 * spec.num_heads * spec.head_dim * spec.num_layers * num_keys
        return self._floor_s(num_bytes, 2 * products * num_rows + attention)

    def prefill_s(self, num_tokens: int, *, num_cached: int = 0, num_sampled: int = 1) -> float:
        """Floor of taking in `num_tokens` behind `num_cached` keys."""
        spec = self.spec
        pairs = num_tokens * num_cached + num_tokens * (num_tokens + 1) // 2
        flops = (
            2 * spec.num_layers * self.layer_weights * num_tokens
            + 4 * spec.num_heads * spec.head_dim * spec.num_layers * pairs
            + 2 * spec.vocab_size * spec.hidden_size * num_sampled
        )
        num_bytes = self.weight_bytes + self.kv_bytes_per_token * (num_tokens + num_cached)
        return self._floor_s(num_bytes, flops)

    def _floor_s(self, num_bytes: float, flops: float) -> float:
        one = max(num_bytes / self.bytes_per_s, flops / self.flops_per_s)
        return one / self.num_ranks


def main() -> None:
    """Prints a table, and one JSON object with --json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="0.6B")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    roofline = Roofline(MODELS[options.model], num_ranks=options.tensor_parallel_size)
    lines = [
        {"rows": rows, "context": keys, "decode_ms": 1e3 * roofline.decode_s(rows, rows * keys)}
        for rows in options.rows
        for keys in options.contexts
    ]
    if options.json:
        print(json.dumps({"model": options.model, "floors": lines}, indent=1))
        return
    print(
        f"Qwen3-{options.model}: {roofline.weight_bytes / 1e9:.2f} GB of weights a step, "
        f"{roofline.kv_bytes_per_token:,} bytes of keys and values a token"
    )
    for line in lines:
        print(f"{line['rows']:>4} rows of {line['context']:>6} keys: {line['decode_ms']:8.3f} ms")


if __name__ == "__main__":
    main()
