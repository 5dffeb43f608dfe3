"""The one decoder of all supported models, driven by its spec. Knows no file, no request, no slot.

Legend: N tokens, S rows that sample, H hidden size, P vocabulary rows of this rank.
"""

from collections.abc import Iterator, Sequence

import torch

from worker_svc.attention.backend import AttentionBackend, LayerCache, StepAttention
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.layers.activation import SiluAndMul
from worker_svc.layers.attention import Attention
from worker_svc.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from worker_svc.layers.fused import FusedBackend, FusedStep
from worker_svc.layers.linear import MergedColumnParallelLinear, RowParallelLinear, TensorKind
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.projection import Projection
from worker_svc.layers.rotary import RotaryEmbedding, RotaryRows
from worker_svc.layers.weight_shard import WeightShard
from worker_svc.models.errors import ParallelSizeError
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.group import ParallelGroup


class FeedForward:
    """The gated feed-forward layer."""

    def __init__(self, spec: ModelSpec, *, group: ParallelGroup, kind: TensorKind) -> None:
        self._gate_up = MergedColumnParallelLinear(
            spec.hidden_size,
            [spec.intermediate_size, spec.intermediate_size],
            group=group,
            kind=kind,
            has_bias=spec.has_mlp_bias,
        )
        self._activation = SiluAndMul(kind.kernels)
        self._down = RowParallelLinear(
            spec.intermediate_size,
            spec.hidden_size,
            group=group,
            kind=kind,
            has_bias=spec.has_mlp_bias,
        )

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensors below `name`."""
        yield from self._gate_up.shards([f"{name}.gate_proj", f"{name}.up_proj"])
        yield from self._down.shards(f"{name}.down_proj")

    def projections(self) -> Iterator[Projection]:
        """What `pack` may repack."""
        yield self._gate_up.projection
        yield self._down.projection

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] -> [N, H], this rank's part of a sum."""
        return self._down(self._activation(self._gate_up(hidden)))


class DecoderLayer:
    """Attention and feed-forward, each after a norm, around the residual stream."""

    def __init__(
        self, spec: ModelSpec, *, rotary: RotaryEmbedding, group: ParallelGroup, kind: TensorKind
    ) -> None:
        self._attention_norm = _stream_norm(spec, group=group, kind=kind)
        self._attention = Attention(spec, rotary=rotary, group=group, kind=kind)
        self._feed_forward_norm = _stream_norm(spec, group=group, kind=kind)
        self._feed_forward = FeedForward(spec, group=group, kind=kind)

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensors below `name`."""
        yield from self._attention_norm.shards(f"{name}.input_layernorm")
        yield from self._attention.shards(f"{name}.self_attn")
        yield from self._feed_forward_norm.shards(f"{name}.post_attention_layernorm")
        yield from self._feed_forward.shards(f"{name}.mlp")

    def projections(self) -> Iterator[Projection]:
        """What `pack` may repack."""
        yield from self._attention.projections()
        yield from self._feed_forward.projections()

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        rows: RotaryRows | None,
        attend: StepAttention | FusedStep,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's own output and the residual stream before it: [N, H] each.

        `hidden` is this rank's part of a sum over ranks, before and after.
        """
        hidden, residual = self._attention_norm.with_residual(hidden, residual)
        hidden = self._attention(hidden, rows, attend, cache)
        hidden, residual = self._feed_forward_norm.with_residual(hidden, residual)
        return self._feed_forward(hidden), residual


class Decoder:
    """Token ids to logits. Weights are empty until a loader has filled every shard."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        group: ParallelGroup,
        backend: AttentionBackend | FusedBackend,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int,
    ) -> None:
        """`num_positions` is the length of the rotary table. Raises `ParallelSizeError`."""
        check_parallel_size(spec, group.size)
        kernels = backend.kernels if isinstance(backend, FusedBackend) else None
        kind = TensorKind(dtype, device, kernels)
        rotary = RotaryEmbedding(
            spec.rope,
            head_dim=spec.head_dim,
            num_positions=num_positions,
            # kernels compute in float32, and so can have exact turns
            kind=kind if kernels is None else TensorKind(torch.float32, device),
        )
        self.spec = spec
        self.num_positions = num_positions
        self._backend = backend
        self._rotary = rotary
        self._embedding = VocabParallelEmbedding(
            spec.vocab_size, spec.hidden_size, group=group, kind=kind
        )
        self._layers = tuple(
            DecoderLayer(spec, rotary=rotary, group=group, kind=kind)
            for _ in range(spec.num_layers)
        )
        self._norm = _stream_norm(spec, group=group, kind=kind)
        self._head = ParallelLMHead(
            spec.vocab_size,
            spec.hidden_size,
            group=group,
            kind=kind,
            tied_to=self._embedding if spec.has_tied_head else None,
        )

    @property
    def first_vocabulary_id(self) -> int:
        """Id of this rank's first logit."""
        return self._head.first_id

    def shards(self) -> Iterator[WeightShard]:
        """Every checkpoint tensor of the model and where this rank's part of it goes."""
        yield from self._embedding.shards("model.embed_tokens")
        for index, layer in enumerate(self._layers):
            yield from layer.shards(f"model.layers.{index}")
        yield from self._norm.shards("model.norm")
        if not self.spec.has_tied_head:
            yield from self._head.shards("lm_head")

    def pack(self) -> None:
        """Bring filled weights into the fastest layout, one by one; a second call does nothing."""
        for layer in self._layers:
            for projection in layer.projections():
                projection.pack()
        self._head.projection.pack()

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Hidden states after the last norm, [N, H]; writes this step's keys and values."""
        attend = self._backend.bind(batch, block_size=caches[0].keys.shape[1])
        rows = None if isinstance(attend, FusedStep) else self._rotary.rows(batch.positions)
        hidden = self._embedding(batch.token_ids)
        residual = torch.zeros_like(hidden)
        for layer, cache in zip(self._layers, caches, strict=True):
            hidden, residual = layer(hidden, residual, rows, attend, cache)
        return self._norm.with_residual(hidden, residual)[0]

    def logits(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """This rank's logits of the rows that sample, [S, P]."""
        return self.logits_at(hidden, batch.last_indexes)

    def logits_at(self, hidden: torch.Tensor, last_indexes: torch.Tensor) -> torch.Tensor:
        """This rank's logits after the tokens `last_indexes` [S] of the step, [S, P]."""
        return self._head(hidden, last_indexes)


def _stream_norm(spec: ModelSpec, *, group: ParallelGroup, kind: TensorKind) -> RMSNorm:
    """A norm that adds to the residual stream what a layer's ranks have computed."""
    return RMSNorm(spec.hidden_size, epsilon=spec.norm_epsilon, kind=kind, group=group)


def check_parallel_size(spec: ModelSpec, size: int) -> None:
    """Raise `ParallelSizeError` when `size` ranks cannot share the model."""
    if spec.num_heads % size:
        raise ParallelSizeError(size=size, field="num_attention_heads", value=spec.num_heads)
    if spec.intermediate_size % size:
        raise ParallelSizeError(size=size, field="intermediate_size", value=spec.intermediate_size)
    if spec.num_kv_heads % size and size % spec.num_kv_heads:
        raise ParallelSizeError(size=size, field="num_key_value_heads", value=spec.num_kv_heads)
