"""A decoder of Qwen3's kind in float64 numpy: one sequence, no cache, nothing clever. For tests."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.fakes.checkpoints import TinyModel, tensors_of

Floats = npt.NDArray[np.float64]

_EPSILON = 1e-6


class ReferenceModel:
    """The weights of a tiny checkpoint, as they are written into it."""

    def __init__(self, model: TinyModel) -> None:
        assert model.family == "qwen3"
        assert not model.rope
        self.model = model
        self._weights = {name: one.astype(np.float64) for name, one in tensors_of(model)}

    def logits(self, tokens: Sequence[int]) -> Floats:
        """[tokens, vocabulary]: after each token."""
        weights = self._weights
        embedding = weights["model.embed_tokens.weight"]
        hidden = embedding[list(tokens)]
        for index in range(self.model.num_layers):
            name = f"model.layers.{index}"
            normed = _norm(hidden, weights[f"{name}.input_layernorm.weight"])
            hidden = hidden + self._attention(normed, f"{name}.self_attn")
            normed = _norm(hidden, weights[f"{name}.post_attention_layernorm.weight"])
            gate = normed @ weights[f"{name}.mlp.gate_proj.weight"].T
            up = normed @ weights[f"{name}.mlp.up_proj.weight"].T
            inner = gate / (1 + np.exp(-gate)) * up
            hidden = hidden + inner @ weights[f"{name}.mlp.down_proj.weight"].T
        head = embedding if self.model.tied else weights["lm_head.weight"]
        logits: Floats = _norm(hidden, weights["model.norm.weight"]) @ head.T
        return logits

    def _attention(self, hidden: Floats, name: str) -> Floats:
        model, weights = self.model, self._weights
        count, size = hidden.shape[0], model.head_dim

        def heads(kind: str, num_heads: int) -> Floats:
            split: Floats = (hidden @ weights[f"{name}.{kind}_proj.weight"].T).reshape(
                count, num_heads, size
            )
            return split

        queries = _norm(heads("q", model.num_heads), weights[f"{name}.q_norm.weight"])
        keys = _norm(heads("k", model.num_kv_heads), weights[f"{name}.k_norm.weight"])
        values = heads("v", model.num_kv_heads)
        queries, keys = self._turned(queries), self._turned(keys)
        shared = model.num_heads // model.num_kv_heads
        keys, values = np.repeat(keys, shared, axis=1), np.repeat(values, shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(size)
        scores[:, np.triu(np.ones((count, count), np.bool_), 1)] = -np.inf
        weight = np.exp(scores - scores.max(axis=2, keepdims=True))
        weight /= weight.sum(axis=2, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weight, values).reshape(count, -1)
        out: Floats = mixed @ weights[f"{name}.o_proj.weight"].T
        return out

    def _turned(self, heads: Floats) -> Floats:
        """Rotary embedding by position."""
        half = self.model.head_dim // 2
        frequencies = self.model.rope_theta ** (-np.arange(half) / half)
        angles = np.arange(heads.shape[0])[:, None] * frequencies
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = heads[..., :half], heads[..., half:]
        turned: Floats = np.concatenate(
            (first * cos - second * sin, second * cos + first * sin), axis=-1
        )
        return turned


def _norm(values: Floats, weight: Floats) -> Floats:
    scaled: Floats = values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + _EPSILON) * weight
    return scaled
