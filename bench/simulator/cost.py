"""How long a step takes: a roofline of one GPU, with measured efficiencies. Knows no schedule.

The formulas are the floors of weights, KV cache and arithmetic; the factors are what kernels reach:

- linear layers take what cuBLAS was measured to take, by rows, in a replayed graph over weights
  that do not fit into the GPU's cache;
- decode attention reads KV at 0.80 of the bandwidth of a copy (FlashAttention-3, 3.45 of 4.30 TB/s)
  and takes 13 us a layer at least;
- prefill attention reaches 0.45 of the arithmetic: a chunk of a few hundred rows does not fill the
  GPU as whole prompts do;
- norms, rotary embedding and the like take 7 us a layer; the host 33 us a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BYTES = 2  # bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU and what kernels make of it."""

    bandwidth: float = 4.30e12  # bytes/s
    arithmetic: float = 773e12  # FLOP/s, bf16
    memory_bytes: float = 139 * 2**30
    kv_efficiency: float = 0.80
    prefill_attention_efficiency: float = 0.45
    attention_layer_us: float = 13.0
    small_kernels_layer_us: float = 7.0
    host_us: float = 33.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder's sizes, and its linear layers' measured times in microseconds by rows."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    intermediate: int
    is_tied: bool
    layer_us: tuple[tuple[int, float], ...]  # rows, time; qkv, o, gate_up, down
    head_us: tuple[tuple[int, float], ...]
    head_dim: int = 128
    vocab_size: int = 151_936

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.hidden * (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return attention + 3 * self.hidden * self.intermediate

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""
        num_tables = 1 if self.is_tied else 2
        embedding = num_tables * self.vocab_size * self.hidden
        return _BYTES * (self.num_layers * self.layer_parameters + embedding)

    @property
    def kv_token_bytes(self) -> int:
        """Memory of one token's keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _BYTES


QWEN3_0_6B = ModelShape(
    name="Qwen3-0.6B",
    num_layers=28,
    hidden=1024,
    num_heads=16,
    num_kv_heads=8,
    intermediate=3072,
    is_tied=True,
    layer_us=(
        *((1, 23.0), (32, 23.3), (64, 24.0), (128, 25.6), (192, 27.9), (256, 29.3), (384, 33.4)),
        *((512, 35.8), (640, 42.8), (768, 48.9), (1024, 55.2), (1536, 76.6), (2048, 99.0)),
    ),
    head_us=((1, 79.0), (16, 82.0), (64, 89.0), (128, 93.0), (256, 122.0)),
)
QWEN3_8B = ModelShape(
    name="Qwen3-8B",
    num_layers=36,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    intermediate=12_288,
    is_tied=False,
    layer_us=(
        *((1, 108.0), (32, 110.2), (64, 110.7), (128, 118.9), (160, 129.8), (192, 138.5)),
        *((256, 157.3), (320, 186.1), (384, 218.3), (512, 301.3), (640, 381.6), (768, 442.3)),
        *((1024, 592.4), (1536, 876.5), (2048, 1164.7)),
    ),
    head_us=((1, 301.0), (16, 315.0), (64, 325.0), (128, 338.0), (256, 481.0)),
)
MODELS = {"0.6b": QWEN3_0_6B, "8b": QWEN3_8B}


class _TimeByRows:
    """Straight lines between what was measured; in proportion beyond."""

    def __init__(self, measured: tuple[tuple[int, float], ...]) -> None:
        self._rows = [num_rows for num_rows, _ in measured]
        self._us = [us for _, us in measured]

    def us(self, num_rows: int) -> float:
        """Microseconds."""
        most = self._rows[-1]
        if num_rows > most:
            return self._us[-1] * num_rows / most
        return float(np.interp(num_rows, self._rows, self._us))


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """Rows of one prompt: how many tokens, behind how many."""

    num_tokens: int
    start: int


class StepCost:
    """Seconds a step takes."""

    def __init__(self, shape: ModelShape, gpu: Gpu | None = None) -> None:
        self.shape = shape
        self.gpu = gpu or Gpu()
        self._kv_s = shape.kv_token_bytes / (self.gpu.bandwidth * self.gpu.kv_efficiency)
        self._kv_floor_s = shape.num_layers * self.gpu.attention_layer_us / 1e6
        self._layer = _TimeByRows(shape.layer_us)
        self._head = _TimeByRows(shape.head_us)
        fixed_us = self.gpu.host_us + shape.num_layers * self.gpu.small_kernels_layer_us
        self._fixed_s = fixed_us / 1e6

    def num_blocks(self, *, block_size: int, memory_share: float = 0.9) -> int:
        """KV blocks that fit beside the weights and 2 GiB of everything else."""
        room = self.gpu.memory_bytes * memory_share - self.shape.weight_bytes - 2 * 2**30
        return int(room / (self.shape.kv_token_bytes * block_size))

    def step_s(
        self, *, num_decode_rows: int, num_context_tokens: int, chunks: Sequence[ChunkWork] = ()
    ) -> float:
        """A step of decode rows with so many tokens in their contexts in all, and of chunks."""
        num_tokens = num_decode_rows + sum(chunk.num_tokens for chunk in chunks)
        seconds = self._fixed_s + self._linear_s(num_tokens, num_decode_rows + len(chunks))
        if num_decode_rows:
            seconds += max(self._kv_s * num_context_tokens, self._kv_floor_s)
        return seconds + sum(self._chunk_attention_s(chunk) for chunk in chunks)

    def decode_steps_s(
        self, *, num_rows: int, num_context_tokens: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """As `step_s`, for several steps of decode rows alone."""
        fixed_s = self._fixed_s + self._linear_s(num_rows, num_rows)
        reading_s = self._kv_s * num_context_tokens.astype(np.float64)
        return fixed_s + np.maximum(reading_s, self._kv_floor_s)

    def _linear_s(self, num_tokens: int, num_heads_rows: int) -> float:
        layers_us = self.shape.num_layers * self._layer.us(num_tokens)
        return (layers_us + self._head.us(num_heads_rows)) / 1e6

    def _chunk_attention_s(self, chunk: ChunkWork) -> float:
        shape, gpu, count = self.shape, self.gpu, chunk.num_tokens
        pairs = count * chunk.start + count * (count + 1) / 2
        flop = 4 * shape.num_heads * shape.head_dim * shape.num_layers * pairs
        arithmetic_s = flop / (gpu.arithmetic * gpu.prefill_attention_efficiency)
        read_s = self._kv_s * (chunk.start + count)
        return max(arithmetic_s, read_s, self._kv_floor_s)
